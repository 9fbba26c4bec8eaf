//! Sysroots of our own, one for each target: core, alloc and compiler_builtins of the real one, the extension API and
//! the vetted libraries. Nothing else exists for a tenant's crate: `std` cannot be named because it is not there.
//!
//! They are stored under `<state>/sysroot-<fingerprint>/` and `<state>/sysroot-wasm32-<fingerprint>/`. Each is built in
//! a temporary folder and renamed into place, so a reader never sees half of one. Two builders that make it at once do
//! no harm.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use data_encoding::HEXLOWER;

use super::artifact::Sha256;
use super::rustc::{MODULE_TARGET, Rustc, TARGET};
use super::{BuildError, Diagnostic, MANIFEST_FILE, PushedSource, ScratchDir, embedded};

/// Changes when the layout of the sysroot or the flags of its crates do.
const LAYOUT: u32 = 1;

/// The standard crates that a tenant may link to. Those two need compiler_builtins, which cannot be named.
const STANDARD: [&str; 3] = ["libcore-", "liballoc-", "libcompiler_builtins-"];

/// What extensions are compiled for.
#[derive(Debug)]
pub(super) struct BuildTarget {
    /// The compiler's name of it.
    pub(super) triple: &'static str,
    /// Beginning of the names of its sysroots' folders.
    folder: &'static str,
    /// Flags of every crate that ends up in an extension.
    pub(super) codegen: &'static [&'static str],
}

/// Libraries of the native tier.
///
/// Overflow is not checked in our own crates and the vetted libraries, which mean what they compute; a tenant's crate
/// turns the checks on ([`TENANT_FLAGS`](super::compiler_run::TENANT_FLAGS)).
///
/// The compiler's optimisations of its intermediate form are off. This compiler's miscompile safe code (rust-lang issue
/// 158206: the one answer of a comparison is yes and no), and no audit looks at their output. LLVM does the inlining
/// and simplification in their place. That option is unstable, so the compiler is set to allow no unstable features as
/// well.
///
/// Tables of lines and names of functions are what the [map](super::debug_info) of a library is made of. They change no
/// instruction.
static NATIVE: BuildTarget = BuildTarget {
    triple: TARGET,
    folder: "sysroot",
    codegen: &[
        "--target",
        TARGET,
        "-Copt-level=3",
        "-Cpanic=abort",
        "-Ccodegen-units=1",
        "-Cdebuginfo=limited",
        "-Cembed-bitcode=no",
        "-Coverflow-checks=off",
        "-Crelocation-model=pic",
        "-Csymbol-mangling-version=v0",
        "-Zmir-opt-level=0",
        "-Zallow-features=",
    ],
};

/// Modules of the sandboxed tier.
///
/// The compiler optimises its intermediate form as it does by default: a miscompiled extension harms only itself.
/// There is no link-time optimisation, which takes half as much CPU time again and makes modules no smaller. A module
/// is compiled once more, to machine code, as a whole: what it would bring is done there.
static MODULE: BuildTarget = BuildTarget {
    triple: MODULE_TARGET,
    folder: "sysroot-wasm32",
    codegen: &[
        "--target",
        MODULE_TARGET,
        "-Copt-level=3",
        "-Cpanic=abort",
        "-Ccodegen-units=1",
        "-Cdebuginfo=limited",
        "-Cembed-bitcode=no",
        "-Coverflow-checks=off",
        "-Csymbol-mangling-version=v0",
        "-Zallow-features=",
    ],
};

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

/// A sysroot of ours.
#[derive(Clone, Debug)]
pub(super) struct Sysroot {
    /// Its folder.
    pub(super) root: PathBuf,
    /// What it compiles for.
    pub(super) target: &'static BuildTarget,
}

impl Sysroot {
    /// Folder of our own crates.
    pub(super) fn crates(&self) -> PathBuf {
        self.root.join("crates")
    }

    /// The rlib of one of our own crates.
    pub(super) fn rlib(&self, crate_name: &str) -> PathBuf {
        self.crates().join(format!("lib{crate_name}.rlib"))
    }
}

/// A compiler with its own sysroots, ready to compile extensions.
#[derive(Clone, Debug)]
pub struct Toolchain {
    /// The compiler.
    pub rustc: Rustc,
    native: Sysroot,
    /// The compiler may come without what modules need: then the reason, for tenants that push one.
    module: Result<Sysroot, BuildError>,
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
    /// Finds the compiler and makes the sysroots if there are none yet (about a second for each). Without the standard
    /// library for modules it says so, and makes libraries only.
    ///
    /// # Errors
    /// `Toolchain` when there is no usable compiler or a library does not compile; `Internal` for files.
    pub fn prepare(config: &ToolchainConfig) -> Result<Toolchain, BuildError> {
        let rustc = Rustc::find(config.rustc.as_deref())?;
        let sources = library_sources(&config.libraries)?;
        fs::create_dir_all(&config.state).map_err(|error| io("creating", &config.state, error))?;
        let scratch = ScratchDir::open(&config.state)?;
        let state = config.state.canonicalize().map_err(|error| io("resolving", &config.state, error))?;
        let maker = SysrootMaker { rustc: &rustc, sources: &sources, state: &state, scratch: &scratch };
        let say = |line: &str| config.said.iter().for_each(|said| said(line));
        if [&NATIVE, &MODULE].into_iter().any(|target| maker.is_to_make(target)) {
            say(&format!(
                "preparing the standard library for extensions, once for rustc {}: a few seconds",
                rustc.release
            ));
        }
        let native = maker.sysroot(&NATIVE)?;
        let module = match maker.sysroot(&MODULE) {
            Err(BuildError::Toolchain(why)) => {
                say(&format!("sandboxed extensions cannot be built: {why}"));
                Err(BuildError::Toolchain(why))
            }
            made => Ok(made?),
        };
        let library = |(package, source): (&String, &LibrarySource)| {
            let crate_name = package.replace('-', "_");
            (package.clone(), VettedLibrary { package: package.clone(), crate_name, version: source.version.clone() })
        };
        let libraries = sources.iter().map(library).collect();
        Ok(Toolchain { rustc, native, module, scratch, libraries, sources })
    }

    /// The folders of its sysroots. Another state folder that has the same ones needs not make its own.
    pub fn sysroots(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(&self.native).chain(&self.module).map(|sysroot| sysroot.root.as_path())
    }

    /// The sysroot of libraries.
    pub(super) fn native(&self) -> &Sysroot {
        &self.native
    }

    /// The sysroot of modules.
    ///
    /// # Errors
    /// `Toolchain`: one line that says what is missing and what to install.
    pub(super) fn module(&self) -> Result<&Sysroot, BuildError> {
        self.module.as_ref().map_err(BuildError::clone)
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
        let message = format!(
            "library {package:?} is not on this server's list; allowed: {}. Its operator may vet it (docs/libraries.md), \
             and `sandstorm_api` has JSON, regular expressions, dates and hashes",
            allowed.join(", ")
        );
        Diagnostic::refused(MANIFEST_FILE, "", 0..0, "libraries", &message)
    }

    /// The source of a library, for builds that need it for another purpose: crate name, edition, files.
    pub(super) fn library_source(&self, package: &str) -> Option<(&str, &[(String, String)])> {
        self.sources.get(package).map(|source| (source.edition.as_str(), source.files.as_slice()))
    }
}

/// Makes the sysroots of one compiler.
struct SysrootMaker<'a> {
    rustc: &'a Rustc,
    sources: &'a BTreeMap<String, LibrarySource>,
    state: &'a Path,
    scratch: &'a ScratchDir,
}

impl SysrootMaker<'_> {
    fn folder(&self, target: &BuildTarget) -> PathBuf {
        self.state.join(format!("{}-{}", target.folder, fingerprint(self.rustc, self.sources, target)))
    }

    /// Returns whether there is no sysroot of a target, and the compiler has what it needs for one.
    fn is_to_make(&self, target: &BuildTarget) -> bool {
        !self.folder(target).is_dir() && self.rustc.target_libraries(target.triple).is_dir()
    }

    /// Returns the sysroot of a target; makes it if there is none.
    fn sysroot(&self, target: &'static BuildTarget) -> Result<Sysroot, BuildError> {
        let sysroot = Sysroot { root: self.folder(target), target };
        if !sysroot.root.is_dir() {
            self.make(&sysroot)?;
        }
        // Compilers that run as another user read it; it contains no secrets.
        let readable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&sysroot.root, readable).map_err(|error| io("opening", &sysroot.root, error))?;
        Ok(sysroot)
    }

    fn make(&self, sysroot: &Sysroot) -> Result<(), BuildError> {
        let (state, triple) = (self.state, sysroot.target.triple);
        let fresh = tempfile::Builder::new()
            .prefix("making-")
            .tempdir_in(state)
            .map_err(|error| io("creating a folder in", state, error))?;
        let making = Sysroot { root: fresh.path().to_owned(), target: sysroot.target };
        let standard = making.root.join("lib/rustlib").join(triple).join("lib");
        for folder in [&standard, &making.crates()] {
            fs::create_dir_all(folder).map_err(|error| io("creating", folder, error))?;
        }
        copy_standard(&self.rustc.target_libraries(triple), &standard, triple)?;
        let api: Vec<(&str, &str)> = embedded::API.to_vec();
        self.compile_crate(&making, "sandstorm_api", "2024", &api)?;
        for (package, source) in self.sources {
            let files: Vec<(&str, &str)> =
                source.files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
            self.compile_crate(&making, &package.replace('-', "_"), &source.edition, &files)?;
        }
        let (fresh, root) = (fresh.keep(), &sysroot.root);
        match fs::rename(&fresh, root) {
            Ok(()) => Ok(()),
            // Another builder was first; its result is the same.
            Err(_) if root.is_dir() => fs::remove_dir_all(&fresh).map_err(|error| io("removing", &fresh, error)),
            Err(error) => Err(io("renaming to", root, error)),
        }
    }

    /// Compiles a trusted crate into `<sysroot>/crates`.
    fn compile_crate(
        &self,
        sysroot: &Sysroot,
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
            .arg(&sysroot.root)
            .args(["--crate-name", crate_name, "--crate-type=rlib", "--edition", edition, "--cap-lints=allow"])
            .args(sysroot.target.codegen)
            .arg(format!("--remap-path-prefix=src={crate_name}/src"))
            .arg("--out-dir")
            .arg(sysroot.crates())
            .arg("src/lib.rs")
            .output()
            .map_err(|error| io("running", &self.rustc.program, error))?;
        if output.status.success() {
            return Ok(());
        }
        let (release, triple) = (&self.rustc.release, sysroot.target.triple);
        let text = String::from_utf8_lossy(&output.stderr);
        Err(BuildError::Toolchain(format!("rustc {release} cannot compile {crate_name} for {triple}:\n{text}")))
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

/// Copies the standard crates of a target: there must be exactly one of each.
fn copy_standard(from: &Path, to: &Path, triple: &str) -> Result<(), BuildError> {
    let mut copied = [0_usize; STANDARD.len()];
    let entries = match fs::read_dir(from) {
        // The target is not installed.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        read => Some(read.map_err(|error| io("reading", from, error))?),
    };
    for entry in entries.into_iter().flatten() {
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
            "the builder needs the standard library for {triple}: {} files {}*.rlib in {}; run `rustup target add {triple}`",
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
fn fingerprint(rustc: &Rustc, sources: &BTreeMap<String, LibrarySource>, target: &BuildTarget) -> String {
    let mut hasher = Sha256::new();
    let mut add = |text: &str| hasher.update_with_length(text.as_bytes());
    add(&LAYOUT.to_string());
    add(&rustc.verbose);
    target.codegen.iter().for_each(|flag| add(flag));
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

#[cfg(test)]
mod tests {
    use super::super::tests::{source, toolchain};
    use super::*;

    #[test]
    fn a_compiler_that_cannot_make_modules_says_what_is_missing() {
        let folder = tempfile::tempdir().expect("a folder");
        let Toolchain { rustc, scratch, sources, .. } = toolchain().clone();
        let rustc = Rustc { sysroot: folder.path().to_owned(), ..rustc };
        let maker = SysrootMaker { rustc: &rustc, sources: &sources, state: folder.path(), scratch: &scratch };
        assert!(!maker.is_to_make(&MODULE), "nobody is told to wait for it");
        let missing = maker.sysroot(&MODULE).map(|_| ()).expect_err("there is none");
        let toolchain = Toolchain { module: Err(missing), ..toolchain().clone() };
        let Err(BuildError::Toolchain(why)) = toolchain.module() else { panic!("{:?}", toolchain.module) };
        assert!(why.contains("run `rustup target add wasm32-unknown-unknown`") && !why.contains('\n'), "{why}");
        let source = source(
            "#![no_std]\npub async fn run(_: sandstorm_api::Db<'_>, _: &[u8]) -> Result<(), sandstorm_api::Error> { Ok(()) }",
        );
        let job = super::super::tests::job();
        super::super::compile(&toolchain, &source, &job).unwrap_or_else(|error| panic!("libraries: {error}"));
        assert!(matches!(
            super::super::wasm_module::build_module(&toolchain, &source, &job),
            Err(BuildError::Toolchain(_))
        ));
    }
}
