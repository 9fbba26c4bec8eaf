//! Finds the real rustc.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::BuildError;

/// Target that extensions are built for: the wrapper reads the worker's block through `gs`.
pub(super) const TARGET: &str = "x86_64-unknown-linux-gnu";

const INSTALL: &str = "install Rust (https://rustup.rs) or name its rustc in the builder's configuration";

/// A rustc and what it says of itself.
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
    /// All it says under `-vV`.
    pub verbose: String,
}

impl Rustc {
    /// Asks `rustc` (by default the one on the path) for its sysroot, and the compiler in there for its version.
    ///
    /// # Errors
    /// `Toolchain`: one line that says what is missing and what to install.
    pub fn find(rustc: Option<&Path>) -> Result<Rustc, BuildError> {
        let asked = rustc.unwrap_or(Path::new("rustc"));
        let sysroot = PathBuf::from(ask(asked, &["--print", "sysroot"])?.trim_end());
        let program = sysroot.join("bin/rustc");
        if !program.is_file() {
            return Err(missing(&format!("no compiler at {}", program.display())));
        }
        let verbose = ask(&program, &["-vV"])?;
        let field = |name: &str| {
            let value = verbose.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            value.unwrap_or("unknown").to_owned()
        };
        if field("host") != TARGET {
            return Err(missing(&format!("{} is for {}, not {TARGET}", program.display(), field("host"))));
        }
        Ok(Rustc { release: field("release"), commit: field("commit-hash"), program, sysroot, verbose })
    }

    /// Fingerprint of this compiler: first 8 bytes, little-endian, of the SHA-256 over all it says of itself.
    pub fn fingerprint(&self) -> u64 {
        let digest = super::artifact::digest(self.verbose.as_bytes());
        digest.first_chunk::<8>().map_or(0, |first| u64::from_le_bytes(*first))
    }

    /// Folder of the compiled standard library.
    pub(super) fn target_libraries(&self) -> PathBuf {
        self.sysroot.join("lib/rustlib").join(TARGET).join("lib")
    }
}

fn missing(what: &str) -> BuildError {
    BuildError::Toolchain(format!("the builder needs rustc: {what}; {INSTALL}"))
}

fn ask(program: &Path, arguments: &[&str]) -> Result<String, BuildError> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| missing(&format!("running {}: {error}", program.display())))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(missing(&format!("{}: {}", program.display(), text.lines().next().unwrap_or("failed"))));
    }
    String::from_utf8(output.stdout).map_err(|_| missing(&format!("{} answers nonsense", program.display())))
}
