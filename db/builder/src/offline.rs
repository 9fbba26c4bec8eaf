//! A tenant's work on its own machine, without a server: start an extension, check it. Its tests:
//! [`test_build`](super::test_build).

use std::fs;
use std::path::{Path, PathBuf};

use sandstorm_net::CodeTier;
use sandstorm_sandbox::SandboxImage;
use sandstorm_sandbox::code_map::split_code_map;

use super::extension_template::ExtensionTemplate;
use super::{
    BuildError, BuilderConfig, BuiltLibrary, CompileJob, CompileLimits, CompilerLauncher, MANIFEST_FILE, Manifest,
    PushedModule, PushedSource, ROOT_FILE, Toolchain, ToolchainConfig, build_library, build_sandboxed,
    build_uploaded_module, check,
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

/// Writes a new extension into `folder`, which must not exist or be empty. It can be pushed without a change, once its
/// tables are there.
///
/// # Errors
/// `Refused` for a name that a server would refuse; `Internal` when the folder is in use or cannot be written.
pub fn new_extension(folder: &Path, name: &str, template: &ExtensionTemplate) -> Result<(), BuildError> {
    let manifest = format!("name = {name:?}\nversion = \"0.1.0\"\nedition = \"2024\"\napi = 1\nlibraries = []\n");
    Manifest::parse(&manifest)?;
    let io = |path: &Path, error: std::io::Error| BuildError::io(&format!("writing {}", path.display()), error);
    if fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(BuildError::Internal(format!("{} is not empty: name a new folder", folder.display())));
    }
    let source = folder.join("src");
    fs::create_dir_all(&source).map_err(|error| io(&source, error))?;
    let readme = template.readme(name);
    let files = [(MANIFEST_FILE, manifest.as_str()), (ROOT_FILE, template.source), ("README.md", readme.as_str())];
    for (path, text) in files {
        let path = folder.join(path);
        fs::write(&path, text).map_err(|error| io(&path, error))?;
    }
    Ok(())
}

/// The answer to a source in one tier.
#[derive(Clone, Debug)]
pub struct TierAnswer {
    /// The tier.
    pub tier: CodeTier,
    /// What a server would load, with the compiler's warnings; or what stands against the source: `Refused`, `Compile`
    /// or `Limit`.
    pub outcome: Result<BuiltLibrary, BuildError>,
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
    let answer = |tier| {
        let outcome = check(&source, &libraries, tier).and_then(|()| build(&toolchain, &source, tier, &job(config)));
        match outcome {
            Ok(_) | Err(BuildError::Refused(_) | BuildError::Compile(_) | BuildError::Limit(_)) => {
                Ok(TierAnswer { tier, outcome })
            }
            Err(error) => Err(error),
        }
    };
    Ok([answer(CodeTier::Sandboxed)?, answer(CodeTier::Native)?])
}

/// Builds a source that was checked.
fn build(
    toolchain: &Toolchain,
    source: &PushedSource,
    tier: CodeTier,
    job: &CompileJob,
) -> Result<BuiltLibrary, BuildError> {
    match tier {
        CodeTier::Sandboxed => build_sandboxed(toolchain, source, job),
        CodeTier::Native => build_library(toolchain, source, job),
    }
}

/// Checks and compiles the extension in a folder as a server does, for one tier; returns what it would load.
///
/// # Errors
/// `Refused`, `Compile` and `Limit` for what stands against the source; the errors that are not the source's fault.
pub fn check_dir_in_tier(
    folder: &Path,
    tier: CodeTier,
    config: Option<&BuilderConfig>,
    said: Option<fn(&str)>,
) -> Result<BuiltLibrary, BuildError> {
    let source = PushedSource::read(folder)?;
    let toolchain = toolchain(config, said)?;
    check(&source, &toolchain.crate_names(&source)?, tier)?;
    build(&toolchain, &source, tier, &job(config))
}

/// What a module from elsewhere becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedModule {
    /// Bytes of machine code.
    pub code_bytes: u64,
    /// Bytes of memory at the start of each call.
    pub memory_bytes: u64,
}

/// Checks and compiles the module in a file as a server does. The compiler runs unconfined: the module is the caller's
/// own.
///
/// # Errors
/// `Refused` with what the module has that is not allowed, `Limit`; the errors that are not the module's fault.
pub fn check_module(
    file: &Path,
    config: Option<&BuilderConfig>,
    said: Option<fn(&str)>,
) -> Result<CheckedModule, BuildError> {
    // The name is the push's business.
    let module = PushedModule::read(file, Some("module"))?;
    let built = build_uploaded_module(&toolchain(config, said)?, &module.wasm, &job(config))?;
    let image =
        SandboxImage::decode(split_code_map(&built.elf).0).map_err(|error| BuildError::Internal(error.to_string()))?;
    Ok(CheckedModule { code_bytes: image.code.len() as u64, memory_bytes: image.layout.memory_bytes.into() })
}

/// The compiler, unconfined, under the limits of a server's.
pub(super) fn job(config: Option<&BuilderConfig>) -> CompileJob {
    let limits = config.map_or_else(CompileLimits::default, |config| config.limits);
    CompileJob { launcher: CompilerLauncher::Unsandboxed, limits }
}
