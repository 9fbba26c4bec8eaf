//! Ports for other programs, which cannot be asked for any free one.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::TcpListener;

/// Below the ports that systems give to connections and to those who ask for any: one of those that is free now may
/// belong to somebody else before the other program has it, or while that program is restarted.
const PORTS: std::ops::Range<u16> = 10_000..32_768;

/// A port of loopback that nobody has now, and that nobody is given who does not ask for it by its number.
pub fn free_port() -> u16 {
    let first = RandomState::new().hash_one(std::process::id());
    let count = u64::from(PORTS.end - PORTS.start);
    let port = |step: u64| PORTS.start + (first.wrapping_add(step) % count) as u16;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (0..count).map(port).find(is_free).expect("a free port")
}
