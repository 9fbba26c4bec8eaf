//! Tests of other protocols: memcached's and Redis', over TCP, TLS and UDP.

#[path = "../common/mod.rs"]
mod common;

mod connections;
mod homes;
mod memcached;
mod redis;
