//! Promise: a program that is grown from one of the known holes is refused, does not compile, or does no harm.
//!
//! Variants are grown from the programs of `tests/hostile/soundness` that must be refused ([`grow`]). What is built is
//! called in a process of its own, beside records of another tenant: it must neither end that process nor reply with
//! what is in them. `SANDSTORM_DEEP=1` grows many more; `HOLE_SEED` other ones.

mod grow;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use sandstorm_builder::check::check;
use sandstorm_builder::{
    BuildError, CompileJob, CompileLimits, CompilerLauncher, PushedSource, SourceFile, build_library,
};
use sandstorm_net::CodeTier;

use crate::common;
use crate::hostile::run_beside_canaries;
use grow::{Program, Variant};

/// Variants of an ordinary run that are checked, and of those that pass, how many are compiled and audited.
const CHECKED: usize = 400;
const COMPILED: usize = 24;
/// The same for a deep run.
const DEEP_CHECKED: usize = 20_000;
const DEEP_COMPILED: usize = 2_000;
/// The programs must not become fewer unnoticed.
const LEAST_PROGRAMS: usize = 120;
/// The variable with the library that a child process calls.
const LIBRARY_VARIABLE: &str = "SANDSTORM_HOLE_LIBRARY";

/// The programs that a soundness rule must refuse, each in one file.
fn programs() -> Vec<Program> {
    let mut paths: Vec<PathBuf> = fs::read_dir(common::root().join("tests/hostile/soundness"))
        .expect("the corpus")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).expect("text");
        let first = text.lines().next().unwrap_or_default();
        let refused = first.starts_with("//! expect: refused") && !first.contains(" or ok");
        let plain = !text.contains("<<<") && !text.contains("//@ file");
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if refused && plain { Program::read(&name, &text) } else { None }
    };
    paths.iter().filter_map(read).collect()
}

/// What became of a variant.
enum VariantOutcome {
    /// By these rules, or the compiler.
    Refused(String),
    Built(Vec<u8>),
}

fn refused(error: &BuildError) -> VariantOutcome {
    match error {
        BuildError::Refused(found) => {
            VariantOutcome::Refused(found.first().and_then(|one| one.rule.clone()).unwrap_or_default())
        }
        BuildError::Compile(found) => VariantOutcome::Refused(format!(
            "compiler {}",
            found.first().and_then(|one| one.rule.clone()).unwrap_or_default()
        )),
        BuildError::Limit(_) => VariantOutcome::Refused("limit".to_owned()),
        other => panic!("{other}"),
    }
}

fn source(files: &[SourceFile]) -> Option<PushedSource> {
    PushedSource::new("name = \"hostile\"\n", files.to_vec()).ok()
}

fn compiled(source: &PushedSource) -> VariantOutcome {
    let job = CompileJob { launcher: CompilerLauncher::Unsandboxed, limits: CompileLimits::default() };
    match build_library(common::toolchain(), source, &job) {
        Ok(built) => VariantOutcome::Built(built.elf),
        Err(error) => refused(&error),
    }
}

/// Calls a library in a process of its own; what went wrong, if anything.
fn harm(elf: &[u8]) -> Option<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("library");
    fs::write(&path, elf).expect("written");
    let child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "holes::child_entry", "--test-threads=1", "--nocapture"])
        .env(LIBRARY_VARIABLE, &path)
        .output()
        .expect("a child");
    if child.status.success() {
        return None;
    }
    Some(format!("{}: {}", child.status, String::from_utf8_lossy(&child.stderr)))
}

/// The child process: calls the library. Does nothing in a normal run.
#[test]
fn child_entry() {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE) {
        let elf = fs::read(Path::new(&path)).expect("the library");
        if let Err(leaked) = run_beside_canaries(&elf) {
            panic!("{leaked}");
        }
    }
}

/// The process that runs what was built notices what it is there for: the test below would pass without it.
#[test]
fn a_reply_with_the_bytes_of_another_tenant_is_noticed() {
    let built = |reply: &str| {
        let text = format!(
            "#![no_std]\nuse sandstorm_api::prelude::*;\n\
             pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {{ db.reply(b\"{reply}\") }}\n"
        );
        let files = [SourceFile { path: sandstorm_builder::ROOT_FILE.to_owned(), text }];
        match compiled(&source(&files).expect("a source")) {
            VariantOutcome::Built(elf) => elf,
            VariantOutcome::Refused(rule) => panic!("{rule}"),
        }
    };
    assert_eq!(harm(&built("its own bytes")), None);
    let noticed = harm(&built("xxry-of-another-tenantca"));
    assert!(noticed.as_ref().is_some_and(|text| text.contains("another tenant's bytes")), "{noticed:?}");
}

fn describe(variant: &Variant) -> String {
    let files = variant.files.iter().map(|file| format!("\n//@ file: {}\n{}", file.path, file.text));
    format!("{}{}", variant.changes.join(", "), files.collect::<String>())
}

#[test]
fn what_grows_from_a_known_hole_is_refused() {
    let programs = programs();
    assert!(programs.len() >= LEAST_PROGRAMS, "{} programs: the corpus has shrunk", programs.len());
    let deep = std::env::var_os("SANDSTORM_DEEP").is_some();
    let (checks, mut compiles) = if deep { (DEEP_CHECKED, DEEP_COMPILED) } else { (CHECKED, COMPILED) };
    let seed = std::env::var("HOLE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut random = StdRng::seed_from_u64(seed);
    let (mut outcomes, mut built) = (std::collections::BTreeMap::<String, usize>::new(), Vec::new());
    for number in 0..checks {
        let program = &programs[(number + random.random_range(0..7)) % programs.len()];
        let variant = grow::grow(program, programs.choose(&mut random).expect("programs"), &mut random);
        let Some(source) = source(&variant.files) else { continue };
        let outcome = match check(&source, &[], CodeTier::Native) {
            Err(error) => refused(&error),
            Ok(()) if compiles > 0 => {
                compiles -= 1;
                compiled(&source)
            }
            Ok(()) => VariantOutcome::Refused("not compiled: enough for one run".to_owned()),
        };
        match outcome {
            VariantOutcome::Refused(rule) => *outcomes.entry(rule).or_default() += 1,
            VariantOutcome::Built(elf) => {
                *outcomes.entry("built".to_owned()).or_default() += 1;
                built.push(format!("{:?}\n{}", harm(&elf), describe(&variant)));
            }
        }
    }
    println!("{outcomes:#?}");
    assert!(built.is_empty(), "{} were built:\n{}", built.len(), built.join("\n\n"));
}
