//! What the builder promises.

use std::path::Path;
use std::sync::OnceLock;

use super::*;

/// One toolchain for all tests of this process, in a folder that later runs find again.
fn toolchain() -> &'static Toolchain {
    static TOOLCHAIN: OnceLock<Toolchain> = OnceLock::new();
    TOOLCHAIN.get_or_init(|| {
        let state = std::env::temp_dir().join("sandstorm-test-builder");
        Toolchain::prepare(&ToolchainConfig { state, ..ToolchainConfig::default() }).expect("a toolchain")
    })
}

fn job() -> Job {
    Job { launcher: Launcher::Unsandboxed, limits: CompileLimits::default() }
}

/// Stands in for `sandstorm builder sandbox-exec`: tests of a library have no binary. Does nothing in a normal run.
#[test]
fn sandbox_exec_entry() {
    if std::env::var_os(sandbox::POLICY_VARIABLE).is_some() {
        let code = sandbox_exec();
        std::process::exit(if code == std::process::ExitCode::SUCCESS { 0 } else { code_of(code) });
    }
}

/// `ExitCode` keeps its number to itself; its debug form shows it.
fn code_of(code: std::process::ExitCode) -> i32 {
    let digits: String = format!("{code:?}").chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(1)
}

/// The sandbox by way of this test binary; `None`, with a line, where the kernel does not offer one.
fn sandboxed() -> Option<Job> {
    let program = std::env::current_exe().expect("this test");
    let arguments = ["--exact", "builder::tests::sandbox_exec_entry", "--test-threads=1"].map(str::to_owned).to_vec();
    match Launcher::strongest(program, arguments, false, toolchain()) {
        Ok(launcher) => Some(Job { launcher, limits: CompileLimits::default() }),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

#[test]
fn an_extension_compiles_in_the_sandbox() {
    let Some(job) = sandboxed() else { return };
    eprintln!("{job:?}");
    let text = "#![no_std]\nuse sandstorm_api::prelude::*;\n\
                pub async fn run(_: Db<'_>, _: &[u8]) -> Result<(), Error> { Ok(()) }\n";
    let elf = compile(toolchain(), &source(text), &job).expect("it compiles");
    assert!(elf.starts_with(b"\x7fELF"));
}

fn source(text: &str) -> Source {
    let files = vec![SourceFile { path: ROOT_FILE.to_owned(), text: text.to_owned() }];
    Source::new("name = \"test\"\n", files).expect("a valid source")
}

#[test]
fn an_extension_becomes_an_elf_library() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ext/get/src/lib.rs");
    let text = std::fs::read_to_string(path).expect("ext/get");
    let elf = compile(toolchain(), &source(&text), &job()).expect("ext/get compiles");
    assert!(elf.starts_with(b"\x7fELF"));
}

#[test]
fn compiler_errors_name_file_line_and_code() {
    let text = "#![no_std]\npub async fn run() {\n    let x: u8 = \"\";\n}\n";
    let Err(BuildError::Compile(found)) = compile(toolchain(), &source(text), &job()) else {
        panic!("must not compile")
    };
    assert_eq!(found.len(), 1, "{found:?}");
    let first = &found[0];
    assert_eq!((first.file.as_str(), first.line, first.column), ("src/lib.rs", 3, 17));
    assert_eq!(first.rule.as_deref(), Some("E0308"));
    assert!(first.rendered.contains("src/lib.rs:3:17"), "{}", first.rendered);
}
