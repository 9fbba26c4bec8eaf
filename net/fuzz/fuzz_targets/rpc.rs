//! RPC messages: decode, then encode to the same bytes. Run: `cargo +nightly fuzz run --fuzz-dir net/fuzz rpc`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sandstorm_net::fuzzing::rpc(bytes));
