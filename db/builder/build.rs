//! Embeds what the builder needs on a machine that has only rustc: the source of the extension API and of the vetted
//! libraries, as one generated table of `include_str!`s. It also embeds the checker's source, whose fingerprint
//! artifacts carry.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Published crates that extensions may name: vetted, `no_std`, without dependencies.
const LIBRARIES: [&str; 1] = ["hmac-sha256"];

/// The sources under `src/` that decide about a source and its compilation: a change of any makes artifacts stale.
const RULES: [&str; 9] = [
    "check",
    "audit",
    "audit.rs",
    "compile.rs",
    "compiler_run.rs",
    "manifest.rs",
    "sysroot.rs",
    "typed",
    "wasm_module.rs",
];
/// Packages that parse a source for the checker.
const PARSERS: [&str; 2] = ["proc-macro2", "syn"];

fn main() {
    let manifest_dir = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let api = manifest_dir.join("../../sandstorm-api/src");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", api.display());
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    let mut out = String::from("/// Source of the extension API: path under `src/`, text.\n");
    writeln!(out, "pub(super) static API: &[(&str, &str)] = &[\n{}];", embedded(&api)).expect("writing to a string");
    out.push_str("/// The vetted libraries: package, version, edition, source files.\n");
    out.push_str("pub(super) static LIBRARIES: &[EmbeddedLibrary] = &[\n");
    let metadata = metadata(&manifest_dir);
    let packages = metadata["packages"].as_array().expect("cargo metadata lists packages");
    for name in LIBRARIES {
        let package = packages
            .iter()
            .find(|package| package["name"] == name)
            .unwrap_or_else(|| panic!("cargo metadata names no package {name}"));
        let text = |field: &str| package[field].as_str().unwrap_or_else(|| panic!("{name} has no {field}")).to_owned();
        let root = PathBuf::from(text("manifest_path")).with_file_name("src");
        writeln!(
            out,
            "EmbeddedLibrary {{ name: {name:?}, version: {:?}, edition: {:?}, files: &[\n{}] }},",
            text("version"),
            text("edition"),
            embedded(&root)
        )
        .expect("writing to a string");
    }
    out.push_str("];\n");
    out.push_str(&rules(&manifest_dir, packages));
    let path = PathBuf::from(variable("OUT_DIR")).join("embedded.rs");
    std::fs::write(&path, out).unwrap_or_else(|error| panic!("writing {}: {error}", path.display()));
}

/// The checker's sources, and the versions of its parsers.
fn rules(manifest_dir: &Path, packages: &[serde_json::Value]) -> String {
    let mut out = String::from("/// The checker's source: path, text; and packages with their versions.\n");
    out.push_str("pub(super) static RULES: &[(&str, &str)] = &[\n");
    let builder = manifest_dir.join("src");
    for name in RULES {
        let path = builder.join(name);
        println!("cargo::rerun-if-changed={}", path.display());
        let lines = if path.is_dir() { embedded(&path) } else { line(name, &path) };
        out.extend(lines.lines().filter(|line| !line.starts_with("(\"tests.rs\"")).flat_map(|line| [line, "\n"]));
    }
    let mut parsers: Vec<(&str, &str)> = packages
        .iter()
        .filter_map(|package| Some((package["name"].as_str()?, package["version"].as_str()?)))
        .filter(|(name, _)| PARSERS.contains(name))
        .collect();
    parsers.sort_unstable();
    for (name, version) in parsers {
        writeln!(out, "({name:?}, {version:?}),").expect("writing to a string");
    }
    out + "];\n"
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|error| panic!("cargo sets {name}: {error}"))
}

/// Cargo's metadata of the workspace. The offline run comes first: the packages that this build needs are downloaded
/// already. A build without tests leaves test-only packages undownloaded, and then the offline run fails and cargo
/// fetches them.
fn metadata(manifest_dir: &Path) -> serde_json::Value {
    let run = |offline: bool| {
        let mut command = Command::new(variable("CARGO"));
        command.args(["metadata", "--format-version=1", "--locked", "--filter-platform"]).arg(variable("TARGET"));
        command.arg("--manifest-path").arg(manifest_dir.join("Cargo.toml"));
        if offline {
            command.arg("--offline");
        }
        command.output().unwrap_or_else(|error| panic!("running cargo metadata: {error}"))
    };
    let mut output = run(true);
    if !output.status.success() {
        output = run(false);
    }
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("cargo metadata's output: {error}"))
}

/// Lines of `("relative/path.rs", include_str!("/absolute/path.rs")),` for every source file under `root`, sorted.
fn embedded(root: &Path) -> String {
    let mut files = Vec::new();
    collect(root, root, &mut files);
    files.sort();
    let mut lines = String::new();
    for (relative, absolute) in files {
        println!("cargo::rerun-if-changed={}", absolute.display());
        lines.push_str(&line(&relative.to_string_lossy(), &absolute));
    }
    lines
}

fn line(name: &str, path: &Path) -> String {
    format!("({name:?}, include_str!({path:?})),\n")
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<(PathBuf, PathBuf)>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("reading {}: {error}", folder.display()));
    for entry in entries {
        let path = entry.unwrap_or_else(|error| panic!("reading {}: {error}", folder.display())).path();
        if path.is_dir() {
            collect(root, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let relative = path.strip_prefix(root).expect("found under the root").to_owned();
            files.push((relative, path.canonicalize().expect("an existing file")));
        }
    }
}
