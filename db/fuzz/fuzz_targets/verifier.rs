//! Images and machine code against the sandbox's decoder and verifier: whatever the bytes, there is an answer. Run:
//! `cargo +nightly fuzz run --fuzz-dir db/fuzz verifier`. The normal run has `db/sandbox/src/verifier/tests/random.rs`.
#![no_main]

use sandstorm_sandbox::layout::PAGE_BYTES;
use sandstorm_sandbox::{ModuleLayout, SandboxImage, verify};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(image) = SandboxImage::decode(bytes) {
        let _answer = verify(&image);
        assert_eq!(SandboxImage::decode(&image.encode()).as_ref(), Ok(&image), "what is decoded is what was encoded");
    }
    let image = SandboxImage {
        layout: ModuleLayout::default(),
        constants_at: PAGE_BYTES as u32,
        constants: vec![7; 32],
        code_at: 2 * PAGE_BYTES as u32,
        code: bytes.to_vec(),
        start: 0,
        poll: 0,
    };
    let _answer = verify(&image);
});
