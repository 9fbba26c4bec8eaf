//! Ports for other programs, which cannot be asked for any free one.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::TcpListener;

/// Below the ports that systems give to connections and to programs that ask for any: one of those that is free now may
/// belong to another program before the tested one has it, or while that is restarted.
const PORTS: std::ops::Range<u16> = 10_000..32_768;

/// A free port of loopback, which a program is given only if it asks for it by its number.
pub fn free_port() -> u16 {
    let first = RandomState::new().hash_one(std::process::id());
    let count = u64::from(PORTS.end - PORTS.start);
    let port = |step: u64| PORTS.start + (first.wrapping_add(step) % count) as u16;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (0..count).map(port).find(is_free).expect("a free port")
}
