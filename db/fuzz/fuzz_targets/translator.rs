//! WebAssembly modules against the translator: each is translated, or refused. Run:
//! `cargo +nightly fuzz run --fuzz-dir db/fuzz translator`. The normal run has `db/builder/src/module_tests.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _answer = sandstorm_translator::translate(bytes);
    // As far as the sections are looked at, too.
    let _answer = sandstorm_translator::translate(&[&b"\0asm\x01\0\0\0"[..], bytes].concat());
});
