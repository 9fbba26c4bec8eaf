//! Datagrams into a client endpoint. Run: `cargo +nightly fuzz run --fuzz-dir net/fuzz client`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandstorm_net::fuzzing::client(bytes));
