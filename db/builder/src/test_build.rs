//! Compiles an extension's own tests with the stand-in of the store: as a program of this machine, or as a module of
//! the sandboxed tier, which the caller runs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use super::compiler_run::TENANT_FLAGS;
use super::offline::{job, toolchain};
use super::sysroot::write_sources;
use super::{
    BuildError, BuilderConfig, MODULE_TARGET, PushedSource, ROOT_FILE, Toolchain, build_uploaded_module, embedded,
};

/// The crate that lists and runs tests in a module.
const HARNESS: &str = include_str!("test_harness.rs");
/// Its name.
const HARNESS_CRATE: &str = "sandstorm_tests";

/// What the tests are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestTarget {
    /// A program of this machine.
    Program,
    /// A WebAssembly module.
    Module,
}

/// The compiled tests, and what they need beside them.
struct CompiledTests {
    /// The folder that they lie in, and its file.
    folder: tempfile::TempDir,
    file: PathBuf,
}

/// Runs the tests of the extension in a folder against the in-memory stand-in of the store. The tests' output goes to
/// `stdout`, the compiler's to this process's standard error. `arguments` are passed to the tests, for example a name
/// to filter by.
///
/// # Errors
/// `Refused` for a source of the wrong form, `Toolchain` and `Internal` when nothing could be run. Compiler errors and
/// failed tests are a status that is not success.
pub fn test_dir(
    folder: &Path,
    config: Option<&BuilderConfig>,
    arguments: &[OsString],
    stdout: Stdio,
    said: Option<fn(&str)>,
) -> Result<ExitStatus, BuildError> {
    match compile_tests(folder, &toolchain(config, said)?, TestTarget::Program)? {
        Ok(tests) => command_status(Command::new(&tests.file).current_dir(folder).args(arguments).stdout(stdout)),
        Err(status) => Ok(status),
    }
}

/// Builds the tests of the extension in a folder for the sandboxed tier; returns the image that the server would load.
/// `Err` in `Ok`: the compiler has refused the tests, and printed why to this process's standard error.
///
/// # Errors
/// As for [`test_dir`]; `Refused` and `Limit` for tests that are more than a module may be.
pub fn build_tests(
    folder: &Path,
    config: Option<&BuilderConfig>,
    said: Option<fn(&str)>,
) -> Result<Result<Vec<u8>, ExitStatus>, BuildError> {
    let toolchain = toolchain(config, said)?;
    toolchain.module()?;
    let tests = match compile_tests(folder, &toolchain, TestTarget::Module)? {
        Ok(tests) => tests,
        Err(status) => return Ok(Err(status)),
    };
    let wasm = std::fs::read(&tests.file).map_err(|error| BuildError::io("reading the compiled tests", error))?;
    drop(tests.folder);
    Ok(Ok(build_uploaded_module(&toolchain, &wasm, &job(config))?.elf))
}

/// Compiles the tests; `Err` in `Ok`: the compiler's status.
fn compile_tests(
    folder: &Path,
    toolchain: &Toolchain,
    target: TestTarget,
) -> Result<Result<CompiledTests, ExitStatus>, BuildError> {
    let source = PushedSource::read(folder)?;
    toolchain.crate_names(&source)?;
    let crates = test_crates(toolchain, &source, target)?;
    let file = crates.path().join("tests");
    let mut command = rustc(toolchain, "2024", target);
    let crate_name = source.manifest.name.replace('-', "_");
    command.current_dir(folder).args(["--crate-name", &crate_name, "--test", "-Copt-level=1"]).args(TENANT_FLAGS);
    command.arg("-L").arg(crates.path()).arg("-o").arg(&file);
    let mut names: Vec<&str> = source.manifest.libraries.iter().map(String::as_str).collect();
    names.push("sandstorm_api");
    if target == TestTarget::Module {
        names.push(HARNESS_CRATE);
        command.args(["-Zcrate-attr=feature(custom_test_frameworks)", "-Cpanic=abort", "-Cstrip=symbols"]);
        command.arg(format!("-Zcrate-attr=test_runner(::{HARNESS_CRATE}::run)"));
        command.args(["-Clink-arg=--export=sandstorm_start", "-Clink-arg=--stack-first"]);
    }
    for name in names {
        let crate_name = name.replace('-', "_");
        let mut value = OsString::from(format!("{crate_name}="));
        value.push(crates.path().join(format!("lib{crate_name}.rlib")));
        command.arg("--extern").arg(value);
    }
    let status = command_status(command.arg(ROOT_FILE))?;
    Ok(if status.success() { Ok(CompiledTests { folder: crates, file }) } else { Err(status) })
}

/// The compiler with its own whole sysroot: tests run on the standard library.
fn rustc(toolchain: &Toolchain, edition: &str, target: TestTarget) -> Command {
    let mut command = Command::new(&toolchain.rustc.program);
    command.args(["--edition", edition]);
    if target == TestTarget::Module {
        // The list of a crate's tests is only had by what is not stable.
        command.args(["--target", MODULE_TARGET]).env("RUSTC_BOOTSTRAP", "1");
    }
    command
}

fn command_status(command: &mut Command) -> Result<ExitStatus, BuildError> {
    let program = command.get_program().to_owned();
    command.status().map_err(|error| BuildError::io(&format!("running {}", program.display()), error))
}

/// The API with its stand-in for the store, and the libraries, compiled for tests into a folder of their own.
fn test_crates(
    toolchain: &Toolchain,
    source: &PushedSource,
    target: TestTarget,
) -> Result<tempfile::TempDir, BuildError> {
    let out = toolchain.scratch.folder("tests-")?;
    compile(toolchain, out.path(), ("sandstorm_api", "2024", target), embedded::API)?;
    if target == TestTarget::Module {
        compile(toolchain, out.path(), (HARNESS_CRATE, "2024", target), &[("lib.rs", HARNESS)])?;
    }
    for package in &source.manifest.libraries {
        if let Some((edition, files)) = toolchain.library_source(package) {
            let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
            compile(toolchain, out.path(), (&package.replace('-', "_"), edition, target), &files)?;
        }
    }
    Ok(out)
}

fn compile(
    toolchain: &Toolchain,
    out: &Path,
    (crate_name, edition, target): (&str, &str, TestTarget),
    files: &[(&str, &str)],
) -> Result<(), BuildError> {
    let folder = write_sources(toolchain.scratch.path(), crate_name, files)?;
    let mut command = rustc(toolchain, edition, target);
    command.current_dir(folder.path()).args(["--crate-name", crate_name, "--crate-type=rlib", "--cap-lints=allow"]);
    command.args(["-Copt-level=1", "--cfg", "feature=\"testing\"", "--out-dir"]).arg(out).arg("src/lib.rs");
    if command_status(&mut command)?.success() {
        Ok(())
    } else {
        Err(BuildError::Toolchain(format!("rustc {} cannot compile {crate_name} for tests", toolchain.rustc.release)))
    }
}
