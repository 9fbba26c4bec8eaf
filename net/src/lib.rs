//! Packets in, packets out: drivers, R2P2 messages, and the RPC codec of the Sandstorm storage server.
//!
//! [`rpc`] is the content of a message, [`r2p2`] carries messages over datagrams, [`reply_cache`] runs each request at
//! most once. [`seal`] hides messages from others on the path, [`driver`] moves datagrams, [`stack`] is a driver over
//! Ethernet frames. [`shared_bytes`] is bytes that are sent from where they lie, [`extents`] memory that a device can
//! read, [`rx_budget`] counts the packet buffers of a receive queue. [`rate_limiter`] bounds how often something
//! happens, and [`dynamic_threshold`] how much of a pool each owner may hold. [`slots`] is the partition of keys,
//! [`call_key`] the number of the one that a call is about, [`forwarding`] what servers say to each other about keys
//! that others have.
//! `trust` is for clients of a port that speaks HTTPS. [`code_tier`] names the tiers of tenants' code. All but `trust`,
//! [`driver`] and [`stack`] are free of sockets and clocks.
#![deny(unsafe_code)]

pub mod call_key;
pub mod code_tier;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod driver;
pub mod dynamic_threshold;
pub mod extents;
pub mod forwarding;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod limits;
pub mod memcached;
pub mod r2p2;
pub mod rate_limiter;
pub mod reply_cache;
pub mod resp;
pub mod rpc;
pub mod rx_budget;
pub mod seal;
pub mod shared_bytes;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod slots;
pub mod stack;
#[cfg(feature = "trust")]
pub mod trust;

pub use code_tier::{CodeOrigin, CodePolicy, CodeTier};
