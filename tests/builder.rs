//! The builder as the server uses it: a process of its own, confined compilers, signed artifacts.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use sandstorm_api::abi::ABI_VERSION;
use sandstorm_db::builder::{
    BuildError, BuilderConfig, BuilderHandle, CompileLimits, Expected, Source, SourceFile, api_fingerprint,
};

fn config() -> BuilderConfig {
    BuilderConfig {
        state: std::env::temp_dir().join("sandstorm-test-builder"),
        program: Some(PathBuf::from(env!("CARGO_BIN_EXE_sandstorm"))),
        // The kernel of the machine that runs the tests may offer no sandbox; the tests of the sandbox itself say so.
        allow_unsandboxed: true,
        ..BuilderConfig::default()
    }
}

fn source(body: &str) -> Source {
    let text = format!(
        "#![no_std]\nuse sandstorm_api::prelude::*;\n\
         pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {{\n    {body}\n}}\n"
    );
    Source::new("name = \"test\"", vec![SourceFile { path: "src/lib.rs".to_owned(), text }]).expect("a source")
}

/// A mutex around what only one test may do: all tests share one state folder, which is what is being tested too.
fn handle() -> Arc<BuilderHandle> {
    BuilderHandle::start(config()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_build_is_signed_for_its_tenant_and_compiler() {
    let builder = handle();
    let source = source("db.reply(args)");
    let artifact = builder.build(7, 42, &source).unwrap_or_else(|error| panic!("{error}"));
    let expected = Expected {
        tenant: 7,
        name: "test".to_owned(),
        compiler: Some(builder.compiler()),
        api_fingerprint: api_fingerprint(),
        abi_version: ABI_VERSION,
        highest: Some(41),
    };
    assert_eq!(artifact.verify(&[builder.public_key()], &expected), Ok(()));
    assert_eq!((artifact.header.version, artifact.header.name.as_str()), (42, "test"));
    assert_eq!(artifact.header.source_digest, source.digest());
    assert!(artifact.elf.starts_with(b"\x7fELF"));
}

#[test]
fn what_is_wrong_with_a_source_comes_back_and_the_builder_goes_on() {
    let builder = handle();
    match builder.build(1, 1, &source("unsafe { db.reply(args) }")) {
        Err(BuildError::Refused(found)) => {
            assert_eq!((found[0].file.as_str(), found[0].line, found[0].column), ("src/lib.rs", 4, 5));
            assert!(found[0].rendered.contains("4 |     unsafe { db.reply(args) }"), "{}", found[0].rendered);
        }
        other => panic!("{other:?}"),
    }
    match builder.build(1, 1, &source("db.answer(args)")) {
        Err(BuildError::Compile(found)) => {
            assert_eq!((found[0].file.as_str(), found[0].line), ("src/lib.rs", 4));
            let told = format!("{found:?}");
            assert!(!told.contains("/tmp") && !told.contains("scratch"), "a path of the server: {told}");
        }
        other => panic!("{other:?}"),
    }
    let mut wrong = source("db.reply(args)");
    wrong.files[0].text =
        wrong.files[0].text.replace("args: &[u8]", "args: &str").replace("reply(args)", "reply(b\"\")");
    match builder.build(1, 1, &wrong) {
        Err(BuildError::Compile(found)) => assert!(found[0].message.contains("pub async fn run"), "{found:?}"),
        other => panic!("{other:?}"),
    }
    wrong = source("db.reply(args)");
    wrong.manifest.libraries.push("serde".to_owned());
    match builder.build(1, 1, &wrong) {
        Err(BuildError::Refused(found)) => assert!(found[0].message.contains("allowed: hmac-sha256"), "{found:?}"),
        other => panic!("{other:?}"),
    }
    builder.build(1, 1, &source("db.reply(args)")).expect("it goes on");
}

#[test]
fn a_builder_that_dies_is_replaced() {
    let builder = handle();
    builder.build(1, 1, &source("db.reply(args)")).expect("built");
    builder.end_processes();
    let first = builder.build(1, 2, &source("db.reply(args)"));
    assert!(matches!(first, Ok(_) | Err(BuildError::Internal(_))), "{first:?}");
    builder.build(1, 3, &source("db.reply(args)")).expect("a new process builds");
}

#[test]
fn many_builds_at_once_all_get_an_answer() {
    let builder = handle();
    std::thread::scope(|scope| {
        for number in 0..6_u64 {
            let builder = &builder;
            scope.spawn(move || {
                let source = source(&format!("let _n = {number}; db.reply(args)"));
                let artifact = builder.build(1, number, &source).expect("built");
                assert_eq!(artifact.header.version, number);
            });
        }
    });
}

#[test]
fn a_source_that_takes_too_much_is_a_limit() {
    let limits = CompileLimits { cpu: std::time::Duration::from_secs(2), ..CompileLimits::default() };
    let builder = BuilderHandle::start(BuilderConfig { limits, ..config() }).expect("a builder");
    let mut hungry = source("db.reply(args)");
    hungry.files[0].text.push_str(
        "#[allow(long_running_const_eval)]\nconst X: u64 = { let mut n = 0_u64; while n < u64::MAX { n += 1 } n };\n",
    );
    let answer = builder.build(1, 1, &hungry);
    assert!(matches!(answer, Err(BuildError::Limit(_))), "{answer:?}");
}

#[test]
fn a_missing_compiler_is_one_clear_line() {
    let none = BuilderConfig { rustc: Some(PathBuf::from("/nowhere/rustc")), ..config() };
    match BuilderHandle::start(none) {
        Err(BuildError::Toolchain(why)) => {
            assert!(why.contains("/nowhere/rustc") && why.contains("install Rust") && !why.contains('\n'), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

/// Runs a shell script the way compilers run, with every namespace.
fn confined(script: &str) -> Option<Output> {
    let folder = tempfile::tempdir().expect("a folder");
    let policy = serde_json::json!({
        "readable": ["/bin", "/usr/bin", "/lib64", "/lib", "/usr/lib", "/proc", "/dev/null"],
        "writable": [folder.path()],
        "namespaces": true,
        "cpu_s": 5, "memory_bytes": 1_u64 << 30, "file_bytes": 1 << 20, "open_files": 64, "processes": 8,
        "second_stage": false,
        "program": "/bin/bash", "arguments": ["-c", script], "environment": {},
    });
    let output = Command::new(env!("CARGO_BIN_EXE_sandstorm"))
        .args(["builder", "sandbox-exec"])
        .env("SANDSTORM_SANDBOX_POLICY", policy.to_string())
        .current_dir(folder.path())
        .output()
        .expect("the binary runs");
    if output.status.code() == Some(125) {
        eprintln!("skipped: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Some(output)
}

#[test]
fn a_confined_process_is_alone() {
    let Some(output) = confined("echo $$ $UID; read x < /proc/1/comm; echo $x; cat /proc/net/dev") else { return };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("2 1000"), "the second process of its world, no user of this machine: {text}");
}

#[test]
fn a_confined_process_cannot_multiply() {
    if rustix::process::getuid().is_root() {
        eprintln!("skipped: the kernel counts no processes of root's");
        return;
    }
    let Some(output) = confined("for n in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1 & done; wait") else { return };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("Resource temporarily unavailable") || text.contains("retry"), "{text}");
}

#[test]
fn how_a_confined_process_ends_is_passed_on() {
    let Some(output) = confined("exit 3") else { return };
    assert_eq!(output.status.code(), Some(3));
    let Some(output) = confined("printf %02000000d 1 > big") else { return };
    assert_eq!(output.status.code(), Some(128 + 25), "SIGXFSZ");
}
