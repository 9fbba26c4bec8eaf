//! Packets in, packets out: drivers, R2P2 messages, and the RPC codec of the Sandstorm storage server.
#![deny(unsafe_code)]

pub mod rpc;
