//! A sysroot of our own: core, alloc and compiler_builtins of the real one, the extension API and the vetted libraries.
//! Nothing else exists for a tenant's crate: `std` cannot be named because it is not there.
//!
//! It is stored under `<state>/sysroot-<fingerprint>/`. It is built in a temporary folder and renamed into place, so a
//! reader never sees half of one. Two builders that make it at once do no harm.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use data_encoding::HEXLOWER;

use super::artifact::Sha256;
use super::rustc::{Rustc, TARGET};
use super::{BuildError, Diagnostic, MANIFEST_FILE, PushedSource, ScratchDir, embedded};

/// Changes when the layout of the sysroot or the flags of its crates do.
const LAYOUT: u32 = 1;

/// The standard crates that a tenant may link to. Those two need compiler_builtins, which cannot be named.
const STANDARD: [&str; 3] = ["libcore-", "liballoc-", "libcompiler_builtins-"];

/// Flags of every crate that ends up in an extension's library.
///
/// The compiler's optimisations of its intermediate form are off. This compiler's miscompile safe code (rust-lang issue
/// 158206: the one answer of a comparison is yes and no), and no audit looks at their output. LLVM does the inlining
/// and simplification in their place. That option is unstable, so the compiler is set to allow no unstable features as
/// well.
pub(super) const CODEGEN: [&str; 12] = [
    "--target",
    TARGET,
    "-Copt-level=3",
    "-Cpanic=abort",
    "-Ccodegen-units=1",
    "-Cdebuginfo=0",
    "-Cembed-bitcode=no",
    "-Coverflow-checks=off",
    "-Crelocation-model=pic",
    "-Csymbol-mangling-version=v0",
    "-Zmir-opt-level=0",
    "-Zallow-features=",
];

/// The environment variable that lets a compiler accept such options.
pub(super) const ENVIRONMENT: (&str, &str) = ("RUSTC_BOOTSTRAP", "1");

/// The locations of the toolchain.
#[derive(Clone, Debug, Default)]
pub struct ToolchainConfig {
    /// Folder for sysroots and the scratch files of builds; created when absent.
    pub state: PathBuf,
    /// The rustc to use; `None`: the one on the path, or in `~/.cargo/bin`.
    pub rustc: Option<PathBuf>,
    /// The operator's own vetted libraries: package name -> folder of a `no_std` crate without dependencies.
    pub libraries: BTreeMap<String, PathBuf>,
    /// Receives a line for people before each slow step.
    pub said: Option<fn(&str)>,
}

/// A vetted library in the sysroot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VettedLibrary {
    /// Its name in a manifest.
    pub package: String,
    /// Its name in Rust.
    pub crate_name: String,
    /// Its version.
    pub version: String,
}

/// A compiler with its own sysroot, ready to compile extensions.
#[derive(Clone, Debug)]
pub struct Toolchain {
    /// The compiler.
    pub rustc: Rustc,
    /// Our sysroot.
    pub root: PathBuf,
    /// Folder for the scratch files of builds.
    pub scratch: ScratchDir,
    /// The vetted libraries, by package name.
    pub libraries: BTreeMap<String, VettedLibrary>,
    sources: BTreeMap<String, LibrarySource>,
}

/// A library's source: edition, and files by their path under `src/`.
#[derive(Clone, Debug)]
struct LibrarySource {
    version: String,
    edition: String,
    files: Vec<(String, String)>,
}

impl Toolchain {
    /// Finds the compiler and makes the sysroot if there is none yet (about a second).
    ///
    /// # Errors
    /// `Toolchain` when there is no usable compiler or a library does not compile; `Internal` for files.
    pub fn prepare(config: &ToolchainConfig) -> Result<Toolchain, BuildError> {
        let rustc = Rustc::find(config.rustc.as_deref())?;
        let sources = library_sources(&config.libraries)?;
        fs::create_dir_all(&config.state).map_err(|error| io("creating", &config.state, error))?;
        let scratch = ScratchDir::open(&config.state)?;
        let state = config.state.canonicalize().map_err(|error| io("resolving", &config.state, error))?;
        let root = state.join(format!("sysroot-{}", fingerprint(&rustc, &sources)));
        let libraries = sources
            .iter()
            .map(|(package, source)| {
                let crate_name = package.replace('-', "_");
                (
                    package.clone(),
                    VettedLibrary { package: package.clone(), crate_name, version: source.version.clone() },
                )
            })
            .collect();
        let toolchain = Toolchain { rustc, root, scratch, libraries, sources };
        if !toolchain.root.is_dir() {
            if let Some(said) = config.said {
                said(&format!(
                    "preparing the standard library for extensions, once for rustc {}: a few seconds",
                    toolchain.rustc.release
                ));
            }
            toolchain.make(&state)?;
        }
        // Compilers that run as another user read it; it contains no secrets.
        let readable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&toolchain.root, readable).map_err(|error| io("opening", &toolchain.root, error))?;
        Ok(toolchain)
    }

    /// Names in Rust of the libraries that a source names.
    ///
    /// # Errors
    /// `Refused` for one that is not on the list; the message shows the list.
    pub fn crate_names(&self, source: &PushedSource) -> Result<Vec<String>, BuildError> {
        let name = |package: &String| match self.libraries.get(package) {
            Some(library) => Ok(library.crate_name.clone()),
            None => Err(BuildError::Refused(vec![self.unknown_library(package)])),
        };
        source.manifest.libraries.iter().map(name).collect()
    }

    fn unknown_library(&self, package: &str) -> Diagnostic {
        let allowed: Vec<&str> = self.libraries.keys().map(String::as_str).collect();
        let message = format!("library {package:?} is not on this server's list; allowed: {}", allowed.join(", "));
        Diagnostic::refused(MANIFEST_FILE, "", 0..0, "libraries", &message)
    }

    /// Folder of our own crates in the sysroot.
    pub(super) fn crates(&self) -> PathBuf {
        self.root.join("crates")
    }

    /// The rlib of one of our own crates.
    pub(super) fn rlib(&self, crate_name: &str) -> PathBuf {
        self.crates().join(format!("lib{crate_name}.rlib"))
    }

    /// The source of a library, for builds that need it for another purpose: crate name, edition, files.
    pub(super) fn library_source(&self, package: &str) -> Option<(&str, &[(String, String)])> {
        self.sources.get(package).map(|source| (source.edition.as_str(), source.files.as_slice()))
    }

    fn make(&self, state: &Path) -> Result<(), BuildError> {
        let fresh = tempfile::Builder::new()
            .prefix("making-")
            .tempdir_in(state)
            .map_err(|error| io("creating a folder in", state, error))?;
        let target = fresh.path().join("lib/rustlib").join(TARGET).join("lib");
        let crates = fresh.path().join("crates");
        for folder in [&target, &crates] {
            fs::create_dir_all(folder).map_err(|error| io("creating", folder, error))?;
        }
        copy_standard(&self.rustc.target_libraries(), &target)?;
        let api: Vec<(&str, &str)> = embedded::API.to_vec();
        self.compile_crate(fresh.path(), "sandstorm_api", "2024", &api)?;
        for (package, source) in &self.sources {
            let files: Vec<(&str, &str)> =
                source.files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
            self.compile_crate(fresh.path(), &package.replace('-', "_"), &source.edition, &files)?;
        }
        let fresh = fresh.keep();
        match fs::rename(&fresh, &self.root) {
            Ok(()) => Ok(()),
            // Another builder was first; its result is the same.
            Err(_) if self.root.is_dir() => fs::remove_dir_all(&fresh).map_err(|error| io("removing", &fresh, error)),
            Err(error) => Err(io("renaming to", &self.root, error)),
        }
    }

    /// Compiles a trusted crate into `<sysroot>/crates`.
    fn compile_crate(
        &self,
        sysroot: &Path,
        crate_name: &str,
        edition: &str,
        files: &[(&str, &str)],
    ) -> Result<(), BuildError> {
        let folder = write_sources(self.scratch.path(), crate_name, files)?;
        let output = Command::new(&self.rustc.program)
            .env_clear()
            .env(ENVIRONMENT.0, ENVIRONMENT.1)
            .current_dir(folder.path())
            .arg("--sysroot")
            .arg(sysroot)
            .args(["--crate-name", crate_name, "--crate-type=rlib", "--edition", edition, "--cap-lints=allow"])
            .args(CODEGEN)
            .arg(format!("--remap-path-prefix=src={crate_name}/src"))
            .arg("--out-dir")
            .arg(sysroot.join("crates"))
            .arg("src/lib.rs")
            .output()
            .map_err(|error| io("running", &self.rustc.program, error))?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        Err(BuildError::Toolchain(format!("{} {} cannot compile {crate_name}:\n{text}", "rustc", self.rustc.release)))
    }
}

/// Writes a crate's files under `src/` of a fresh folder.
pub(super) fn write_sources(
    scratch: &Path,
    name: &str,
    files: &[(&str, &str)],
) -> Result<tempfile::TempDir, BuildError> {
    let folder = tempfile::Builder::new()
        .prefix(&format!("{name}-"))
        .tempdir_in(scratch)
        .map_err(|error| io("creating a folder in", scratch, error))?;
    for (path, text) in files {
        let path = folder.path().join("src").join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| io("creating", parent, error))?;
        }
        fs::write(&path, text).map_err(|error| io("writing", &path, error))?;
    }
    Ok(folder)
}

fn io(what: &str, path: &Path, error: std::io::Error) -> BuildError {
    BuildError::io(&format!("{what} {}", path.display()), error)
}

/// Copies the standard crates: there must be exactly one of each.
fn copy_standard(from: &Path, to: &Path) -> Result<(), BuildError> {
    let mut copied = [0_usize; STANDARD.len()];
    for entry in fs::read_dir(from).map_err(|error| io("reading", from, error))? {
        let entry = entry.map_err(|error| io("reading", from, error))?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        let Some(index) = STANDARD.iter().position(|prefix| text.starts_with(prefix)) else { continue };
        if text.ends_with(".rlib") || text.ends_with(".rmeta") {
            fs::copy(entry.path(), to.join(&name)).map_err(|error| io("copying", &entry.path(), error))?;
            copied[index] += usize::from(text.ends_with(".rlib"));
        }
    }
    match copied.iter().position(|count| *count != 1) {
        None => Ok(()),
        Some(index) => Err(BuildError::Toolchain(format!(
            "the builder needs the standard library for {TARGET}: {} files {}*.rlib in {}; run `rustup target add {TARGET}`",
            copied[index],
            STANDARD[index],
            from.display()
        ))),
    }
}

fn library_sources(own: &BTreeMap<String, PathBuf>) -> Result<BTreeMap<String, LibrarySource>, BuildError> {
    let mut sources = BTreeMap::new();
    for library in embedded::LIBRARIES {
        let files = library.files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        let (version, edition) = (library.version.to_owned(), library.edition.to_owned());
        sources.insert(library.name.to_owned(), LibrarySource { version, edition, files });
    }
    for (package, folder) in own {
        sources.insert(package.clone(), read_library(package, folder)?);
    }
    Ok(sources)
}

/// Reads an operator's library: version and edition from its Cargo.toml, files from its `src/`.
fn read_library(package: &str, folder: &Path) -> Result<LibrarySource, BuildError> {
    let wrong = |why: String| BuildError::Toolchain(format!("library {package} in {}: {why}", folder.display()));
    let name_ok = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if package.is_empty() || !package.bytes().all(name_ok) {
        return Err(wrong("its name must be letters, digits, _ and -".to_owned()));
    }
    if ["core", "alloc", "std", "sandstorm-api", "sandstorm_api", "tenant"].contains(&package) {
        return Err(wrong("this name is taken".to_owned()));
    }
    let manifest = folder.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).map_err(|error| wrong(format!("reading Cargo.toml: {error}")))?;
    let parsed: toml::Table = toml::from_str(&text).map_err(|error| wrong(error.message().to_owned()))?;
    let needs = |table: &str| parsed.get(table).and_then(toml::Value::as_table).is_some_and(|table| !table.is_empty());
    if needs("dependencies") || needs("build-dependencies") {
        return Err(wrong("it has dependencies; only crates without any can be added".to_owned()));
    }
    let field = |name: &str, default: &str| {
        parsed
            .get("package")
            .and_then(|value| value.get(name))
            .and_then(toml::Value::as_str)
            .unwrap_or(default)
            .to_owned()
    };
    let mut files = Vec::new();
    read_files(&folder.join("src"), "", &mut files).map_err(|error| wrong(format!("reading src: {error}")))?;
    files.sort();
    if !files.iter().any(|(path, _)| path == "lib.rs") {
        return Err(wrong("it has no src/lib.rs".to_owned()));
    }
    Ok(LibrarySource { version: field("version", "0.0.0"), edition: field("edition", "2015"), files })
}

fn read_files(folder: &Path, inside: &str, files: &mut Vec<(String, String)>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = format!("{inside}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            read_files(&entry.path(), &format!("{name}/"), files)?;
        } else if name.ends_with(".rs") {
            files.push((name, fs::read_to_string(entry.path())?));
        }
    }
    Ok(())
}

/// A fingerprint of the sysroot's inputs: 16 hexadecimal digits.
fn fingerprint(rustc: &Rustc, sources: &BTreeMap<String, LibrarySource>) -> String {
    let mut hasher = Sha256::new();
    let mut add = |text: &str| hasher.update_with_length(text.as_bytes());
    add(&LAYOUT.to_string());
    add(&rustc.verbose);
    CODEGEN.iter().for_each(|flag| add(flag));
    embedded::API.iter().for_each(|(path, text)| {
        add(path);
        add(text);
    });
    for (package, source) in sources {
        add(package);
        add(&source.edition);
        source.files.iter().for_each(|(path, text)| {
            add(path);
            add(text);
        });
    }
    HEXLOWER.encode(&hasher.finish()[..8])
}
