//! memcached's binary protocol: the fast reading against the slow one. Run:
//! `cargo +nightly fuzz run --fuzz-dir net/fuzz memcached_binary`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandstorm_net::fuzzing::memcached_binary(bytes));
