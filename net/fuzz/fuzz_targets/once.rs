//! Operations of an at-most-once window, against slow models. Run: `cargo +nightly fuzz run --fuzz-dir net/fuzz once`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandstorm_net::fuzzing::once(bytes));
