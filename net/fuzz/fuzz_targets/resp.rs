//! Commands of Redis clients against a slow reading. Run: `cargo +nightly fuzz run --fuzz-dir net/fuzz resp`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandstorm_net::fuzzing::resp(bytes));
