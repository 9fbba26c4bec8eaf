//! memcached requests: the fast reading against the slow one. Run:
//! `cargo +nightly fuzz run --fuzz-dir net/fuzz memcached`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandstorm_net::memcached::reference::fuzz(bytes));
