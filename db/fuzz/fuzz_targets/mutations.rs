//! Sources made of others, against the checker. Run: `cargo +nightly fuzz run --fuzz-dir db/fuzz mutations`.
#![no_main]

use std::path::Path;
use std::sync::OnceLock;

#[path = "../../../tests/extensions/mutations/mutate.rs"]
mod mutate;

fn bases() -> &'static [mutate::Base] {
    static BASES: OnceLock<Vec<mutate::Base>> = OnceLock::new();
    BASES.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        ["ext", "tests/ordinary", "tests/hostile"].iter().flat_map(|folder| mutate::bases(&root.join(folder))).collect()
    })
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    mutate::mutant(bases(), bytes);
});
