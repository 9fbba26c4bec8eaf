//! Sealed packets into a server and a client. Run: `cargo +nightly fuzz run --fuzz-dir net/fuzz seal`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandstorm_net::fuzzing::seal(bytes));
