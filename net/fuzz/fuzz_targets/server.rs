//! Datagrams into a server endpoint. Run: `cargo +nightly fuzz run --fuzz-dir net/fuzz server`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandstorm_net::fuzzing::server(bytes));
