//! Packets in, packets out: drivers, R2P2 messages, and the RPC codec of the Sandstorm storage server.
//!
//! [`rpc`] is what stands inside a message, [`r2p2`] carries messages over datagrams, [`reply_cache`] runs each request
//! at most once, [`seal`] hides them from others on the way, [`driver`] moves datagrams, [`stack`] is a driver over
//! Ethernet frames; [`shared_bytes`] is bytes that are sent from where they lie, [`extents`] memory where a device can
//! read them, [`rx_budget`] counts the packet buffers in which such lie. [`rate_limiter`] bounds how often something
//! happens, and [`dynamic_threshold`] who may hold how much of what is shared. `trust` is for those who ask a port that
//! speaks HTTPS. All but these three are free of sockets and clocks.
#![deny(unsafe_code)]

#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod driver;
pub mod dynamic_threshold;
pub mod extents;
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
pub mod stack;
#[cfg(feature = "trust")]
pub mod trust;
