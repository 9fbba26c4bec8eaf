//! Promises: for randomly changed sources, the checker neither panics nor hangs. A source that passes contains nothing
//! that must never pass. The compiler's output is then audited and loads, or is refused with a reason.
//!
//! The fuzz target runs the same without end: `cargo +nightly fuzz run --fuzz-dir db/fuzz mutations`.

mod mutate;

use crate::common;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use sandstorm_builder::{BuildError, CompileJob, CompileLimits, CompilerLauncher, api_fingerprint, build_library};
use sandstorm_extension::ExtensionLibrary;

/// Sources that are only checked.
const CHECKED: usize = 3_000;
/// Sources that are compiled, of those that passed.
const COMPILED: usize = 16;

fn bytes(random: &mut StdRng) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    random.fill_bytes(&mut bytes);
    bytes
}

fn seed() -> u64 {
    std::env::var("MUTATION_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[test]
fn no_mutant_upsets_the_checker_or_passes_with_what_must_not_pass() {
    let mut bases = mutate::bases(&common::root().join("ext"));
    bases.extend(mutate::bases(&common::root().join("tests/ordinary")));
    bases.extend(mutate::bases(&common::root().join("tests/hostile")));
    let mut random = StdRng::seed_from_u64(seed());
    let passed = (0..CHECKED).filter(|_| mutate::mutant(&bases, &bytes(&mut random)).is_some()).count();
    assert!(passed > CHECKED / 100, "only {passed} of {CHECKED} mutants pass: they test nothing");
    println!("{passed} of {CHECKED} passed the checker");
}

#[test]
fn what_becomes_of_mutants_is_loaded_or_refused_with_a_reason() {
    let mut bases = mutate::bases(&common::root().join("ext"));
    // Without the programs that attack the compiler: they take minutes, and are tested elsewhere.
    for group in ["soundness", "smuggling", "host_calls"] {
        bases.extend(mutate::bases(&common::root().join("tests/hostile").join(group)));
    }
    let mut random = StdRng::seed_from_u64(seed());
    let job = CompileJob { launcher: CompilerLauncher::Unsandboxed, limits: CompileLimits::default() };
    let (mut compiled, mut loaded) = (0, 0);
    while compiled < COMPILED {
        let Some(source) = mutate::mutant(&bases, &bytes(&mut random)) else { continue };
        compiled += 1;
        match build_library(common::toolchain(), &source, &job) {
            Ok(built) => {
                let library = ExtensionLibrary::load(&built.elf, api_fingerprint());
                assert!(library.is_ok(), "{}\n{}", library.expect_err("an error"), source.files[0].text);
                loaded += 1;
            }
            Err(error @ (BuildError::Compile(_) | BuildError::Refused(_) | BuildError::Limit(_))) => {
                assert!(!error.to_string().is_empty());
            }
            Err(other) => panic!("{other}:\n{}", source.files[0].text),
        }
    }
    println!("{loaded} of {COMPILED} were compiled and loaded");
}
