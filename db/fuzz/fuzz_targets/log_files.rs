//! Files of a log whose checksums are right, read as a start reads them. Run:
//! `cargo +nightly fuzz run --fuzz-dir db/fuzz log_files`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandstorm_log::fuzzing::log_files(bytes));
