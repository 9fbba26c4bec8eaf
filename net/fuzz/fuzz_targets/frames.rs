//! Frames into the UDP/IP stack. Run: `cargo +nightly fuzz run --fuzz-dir net/fuzz frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandstorm_net::fuzzing::frames(bytes));
