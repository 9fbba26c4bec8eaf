//! Finds the real rustc.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::BuildError;

/// Target of native extensions, and of the compiler: the wrapper reads the worker's block through `gs`.
pub(super) const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Target of the modules of sandboxed extensions.
pub const MODULE_TARGET: &str = "wasm32-unknown-unknown";

const INSTALL: &str = "install Rust (https://rustup.rs), or name the compiler with --rustc FILE or rustc = \"FILE\" under \
                       [builder]; `rustc --print sysroot` prints the folder that has it as bin/rustc";

/// Name of the compiler.
const RUSTC: &str = "rustc";

/// A rustc and its own description.
#[derive(Clone, Debug)]
pub struct Rustc {
    /// The compiler itself, not a proxy.
    pub program: PathBuf,
    /// Its own sysroot.
    pub sysroot: PathBuf,
    /// For example `1.95.0`.
    pub release: String,
    /// The commit it was built from, or `unknown`.
    pub commit: String,
    /// Its whole output under `-vV`.
    pub verbose: String,
}

impl Rustc {
    /// Asks `rustc` (by default the one on the path, or where rustup installs it) for its sysroot, and the compiler in
    /// there for its version.
    ///
    /// # Errors
    /// `Toolchain`: one line that says what is missing and what to install.
    pub fn find(rustc: Option<&Path>) -> Result<Rustc, BuildError> {
        match rustc {
            Some(rustc) => Rustc::behind(rustc),
            None => Rustc::behind(&CompilerSearch::of_this_process().find()?),
        }
    }

    fn behind(asked: &Path) -> Result<Rustc, BuildError> {
        let sysroot = PathBuf::from(run_rustc_query(asked, &["--print", "sysroot"])?.trim_end());
        let program = sysroot.join("bin/rustc");
        if !program.is_file() {
            return Err(missing_rustc(&format!("no compiler at {}", program.display())));
        }
        let verbose = run_rustc_query(&program, &["-vV"])?;
        let field = |name: &str| {
            let value = verbose.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            value.unwrap_or("unknown").to_owned()
        };
        if field("host") != TARGET {
            return Err(missing_rustc(&format!("{} is for {}, not {TARGET}", program.display(), field("host"))));
        }
        let (release, commit) = (field("release"), field("commit-hash"));
        check_linker(&sysroot, &program, &release)?;
        Ok(Rustc { release, commit, program, sysroot, verbose })
    }

    /// Fingerprint of this compiler: first 8 bytes, little-endian, of the SHA-256 over its whole description.
    pub fn fingerprint(&self) -> u64 {
        let digest = super::artifact::sha256(self.verbose.as_bytes());
        digest.first_chunk::<8>().map_or(0, |first| u64::from_le_bytes(*first))
    }

    /// Returns whether the compiler can make the modules of the sandboxed tier, for which its standard library must be
    /// installed.
    pub fn makes_modules(&self) -> bool {
        self.target_libraries(MODULE_TARGET).is_dir()
    }

    /// Folder of the compiled standard library for a target.
    pub(super) fn target_libraries(&self, target: &str) -> PathBuf {
        self.sysroot.join("lib/rustlib").join(target).join("lib")
    }
}

/// The folders in which an unnamed compiler is searched. A service has neither the path nor the environment of a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompilerSearch {
    /// The folders of `PATH`.
    pub path: Vec<PathBuf>,
    /// The folders where rustup installs it: `bin` in `CARGO_HOME`, and `~/.cargo/bin`.
    pub rustup: Vec<PathBuf>,
}

impl CompilerSearch {
    /// The folders of this process's environment.
    pub fn of_this_process() -> CompilerSearch {
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
        let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = std::env::home_dir().filter(|home| home.is_absolute()).map(|home| home.join(".cargo"));
        let rustup = cargo.into_iter().chain(home).map(|folder| folder.join("bin")).collect();
        CompilerSearch { path: std::env::split_paths(&path).collect(), rustup }
    }

    /// Returns the first compiler that exists.
    ///
    /// # Errors
    /// `Toolchain`: the searched folders, and advice.
    pub fn find(&self) -> Result<PathBuf, BuildError> {
        let programs = self.path.iter().chain(&self.rustup).map(|folder| folder.join(RUSTC));
        programs.into_iter().find(|program| is_program(program)).ok_or_else(|| {
            let shown = |folders: &[PathBuf]| {
                folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
            };
            missing_rustc(&format!(
                "there is none on the PATH ({}), which for a service is not your shell's, nor in {}",
                shown(&self.path),
                shown(&self.rustup)
            ))
        })
    }
}

/// Refuses a compiler without a linker of its own at the start; otherwise every push would fail.
fn check_linker(sysroot: &Path, program: &Path, release: &str) -> Result<(), BuildError> {
    if sysroot.join("lib/rustlib").join(TARGET).join("bin/rust-lld").is_file() {
        return Ok(());
    }
    Err(BuildError::Toolchain(format!(
        "the builder needs a rustc with rust-lld, which links extensions: {} (rustc {release}) comes without it, as those of \
         distributions do; install Rust with rustup (https://rustup.rs), and name its rustc with --rustc FILE or rustc = \"FILE\" \
         under [builder]",
        program.display()
    )))
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

fn missing_rustc(what: &str) -> BuildError {
    BuildError::Toolchain(format!("the builder needs rustc: {what}; {INSTALL}"))
}

fn run_rustc_query(program: &Path, arguments: &[&str]) -> Result<String, BuildError> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| missing_rustc(&format!("running {}: {error}", program.display())))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(missing_rustc(&format!("{}: {}", program.display(), text.lines().next().unwrap_or("failed"))));
    }
    String::from_utf8(output.stdout).map_err(|_| missing_rustc(&format!("{} answers nonsense", program.display())))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn program(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_compiler_is_found_on_the_path_and_then_where_rustup_puts_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let search = CompilerSearch { path: vec![at("a"), at("b")], rustup: vec![at("cargo/bin")] };
        let error = search.find().unwrap_err().to_string();
        for part in ["a, ", "/b)", "cargo/bin; ", "not your shell's", "--rustc FILE", "[builder]", "bin/rustc"] {
            assert!(error.contains(part) && !error.contains('\n'), "{part}: {error}");
        }
        program(&at("cargo/bin/rustc"));
        assert_eq!(search.find().unwrap(), at("cargo/bin/rustc"));
        fs::create_dir_all(at("a/rustc")).unwrap();
        program(&at("b/rustc"));
        assert_eq!(search.find().unwrap(), at("b/rustc"), "a folder of that name is none");
    }

    #[test]
    fn a_compiler_without_a_linker_is_refused_before_anything_is_pushed() {
        let folder = tempfile::tempdir().unwrap();
        let check = || check_linker(folder.path(), Path::new("/usr/bin/rustc"), "1.96.0");
        let error = check().unwrap_err().to_string();
        for part in ["rust-lld", "/usr/bin/rustc (rustc 1.96.0)", "https://rustup.rs", "--rustc FILE"] {
            assert!(error.contains(part) && !error.contains('\n'), "{part}: {error}");
        }
        program(&folder.path().join("lib/rustlib").join(TARGET).join("bin/rust-lld"));
        check().unwrap();
    }
}
