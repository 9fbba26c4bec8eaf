//! A tenant's work on its own machine, without a server: start an extension, check it, run its tests.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use sandstorm_net::CodeTier;

use super::sysroot::write_sources;
use super::wasm_module::build_module;
use super::{
    BuildError, BuilderConfig, CompileJob, CompileLimits, CompilerLauncher, Diagnostic, MANIFEST_FILE, Manifest,
    PushedSource, ROOT_FILE, Toolchain, ToolchainConfig, build_library, check, embedded,
};

/// The folder of the command line's sysroot: `$XDG_CACHE_HOME/sandstorm` or `~/.cache/sandstorm`.
pub fn default_cache_dir() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    cache.unwrap_or_else(std::env::temp_dir).join("sandstorm")
}

/// The command line's toolchain. Its state is as in [`default_cache_dir`] unless the configuration names another
/// folder. `said` receives a line before each slow step.
///
/// # Errors
/// As for [`Toolchain::prepare`].
pub fn toolchain(config: Option<&BuilderConfig>, said: Option<fn(&str)>) -> Result<Toolchain, BuildError> {
    Toolchain::prepare(&match config {
        Some(config) => ToolchainConfig {
            state: config.state.clone(),
            rustc: config.rustc.clone(),
            libraries: config.libraries.clone(),
            said,
        },
        None => ToolchainConfig { state: default_cache_dir(), said, ..ToolchainConfig::default() },
    })
}

/// Writes a new extension into `folder`, which must not exist or be empty. It can be pushed without a change.
///
/// # Errors
/// `Refused` for a name that a server would refuse; `Internal` when the folder is in use or cannot be written.
pub fn new_extension(folder: &Path, name: &str) -> Result<(), BuildError> {
    let manifest = format!("name = {name:?}\nversion = \"0.1.0\"\nedition = \"2024\"\napi = 1\nlibraries = []\n");
    Manifest::parse(&manifest)?;
    let io = |path: &Path, error: std::io::Error| BuildError::io(&format!("writing {}", path.display()), error);
    if fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(BuildError::Internal(format!("{} is not empty: name a new folder", folder.display())));
    }
    let source = folder.join("src");
    fs::create_dir_all(&source).map_err(|error| io(&source, error))?;
    let readme = include_str!("template/README.md").replace("NAME", name);
    let files = [(MANIFEST_FILE, manifest.as_str()), (ROOT_FILE, TEMPLATE), ("README.md", readme.as_str())];
    for (path, text) in files {
        let path = folder.join(path);
        fs::write(&path, text).map_err(|error| io(&path, error))?;
    }
    Ok(())
}

/// The source of a new extension.
const TEMPLATE: &str = include_str!("template/lib.rs.txt");

/// The answer to a source in one tier.
#[derive(Clone, Debug)]
pub struct TierAnswer {
    /// The tier.
    pub tier: CodeTier,
    /// The compiler's warnings, or what stands against the source: `Refused`, `Compile` or `Limit`.
    pub outcome: Result<Vec<Diagnostic>, BuildError>,
}

/// Checks and compiles the extension in a folder as a server does, for the sandboxed and for the native tier. The
/// compiler runs unconfined: the source is the caller's own.
///
/// # Errors
/// `Refused` for a source that no tier would read; the errors that are not the source's fault.
pub fn check_dir(
    folder: &Path,
    config: Option<&BuilderConfig>,
    said: Option<fn(&str)>,
) -> Result<[TierAnswer; 2], BuildError> {
    let source = PushedSource::read(folder)?;
    let toolchain = toolchain(config, said)?;
    let libraries = toolchain.crate_names(&source)?;
    let limits = config.map_or_else(CompileLimits::default, |config| config.limits);
    let job = CompileJob { launcher: CompilerLauncher::Unsandboxed, limits };
    let answer = |tier| {
        let outcome = check(&source, &libraries, tier).and_then(|()| match tier {
            CodeTier::Sandboxed => build_module(&toolchain, &source, &job).map(|built| built.warnings),
            CodeTier::Native => build_library(&toolchain, &source, &job).map(|built| built.warnings),
        });
        match outcome {
            Ok(_) | Err(BuildError::Refused(_) | BuildError::Compile(_) | BuildError::Limit(_)) => {
                Ok(TierAnswer { tier, outcome })
            }
            Err(error) => Err(error),
        }
    };
    Ok([answer(CodeTier::Sandboxed)?, answer(CodeTier::Native)?])
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
    let source = PushedSource::read(folder)?;
    let toolchain = toolchain(config, said)?;
    toolchain.crate_names(&source)?;
    let crates = test_crates(&toolchain, &source)?;
    let program = crates.path().join("tests");
    let mut command = rustc(&toolchain, "2024");
    command.current_dir(folder).args([
        "--crate-name",
        &source.manifest.name.replace('-', "_"),
        "--test",
        "-Copt-level=1",
    ]);
    command.arg("-L").arg(crates.path()).arg("-o").arg(&program);
    for name in source.manifest.libraries.iter().map(String::as_str).chain(["sandstorm_api"]) {
        let crate_name = name.replace('-', "_");
        let mut value = OsString::from(format!("{crate_name}="));
        value.push(crates.path().join(format!("lib{crate_name}.rlib")));
        command.arg("--extern").arg(value);
    }
    let status = command_status(command.arg(ROOT_FILE))?;
    if !status.success() {
        return Ok(status);
    }
    self::command_status(Command::new(&program).current_dir(folder).args(arguments).stdout(stdout))
}

/// The compiler with its own whole sysroot: tests run on the standard library.
fn rustc(toolchain: &Toolchain, edition: &str) -> Command {
    let mut command = Command::new(&toolchain.rustc.program);
    command.args(["--edition", edition]);
    command
}

fn command_status(command: &mut Command) -> Result<ExitStatus, BuildError> {
    let program = command.get_program().to_owned();
    command.status().map_err(|error| BuildError::io(&format!("running {}", program.display()), error))
}

/// The API with its stand-in for the store, and the libraries, compiled for tests into a folder of their own.
fn test_crates(toolchain: &Toolchain, source: &PushedSource) -> Result<tempfile::TempDir, BuildError> {
    let out = toolchain.scratch.folder("tests-")?;
    compile(toolchain, out.path(), "sandstorm_api", "2024", embedded::API)?;
    for package in &source.manifest.libraries {
        if let Some((edition, files)) = toolchain.library_source(package) {
            let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
            compile(toolchain, out.path(), &package.replace('-', "_"), edition, &files)?;
        }
    }
    Ok(out)
}

fn compile(
    toolchain: &Toolchain,
    out: &Path,
    crate_name: &str,
    edition: &str,
    files: &[(&str, &str)],
) -> Result<(), BuildError> {
    let folder = write_sources(toolchain.scratch.path(), crate_name, files)?;
    let mut command = rustc(toolchain, edition);
    command.current_dir(folder.path()).args(["--crate-name", crate_name, "--crate-type=rlib", "--cap-lints=allow"]);
    command.args(["-Copt-level=1", "--cfg", "feature=\"testing\"", "--out-dir"]).arg(out).arg("src/lib.rs");
    if command_status(&mut command)?.success() {
        Ok(())
    } else {
        Err(BuildError::Toolchain(format!("rustc {} cannot compile {crate_name} for tests", toolchain.rustc.release)))
    }
}
