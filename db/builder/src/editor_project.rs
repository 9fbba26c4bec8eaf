//! A project file with which an editor understands an extension: completion, documentation on hover, errors while the
//! author types. An extension is no package of cargo's, so rust-analyzer is told by `rust-project.json` which crates
//! there are: the extension, the API and the vetted libraries that it names, whose sources are part of this program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::embedded::{API, LIBRARIES};
use super::offline::default_cache_dir;
use super::{BuildError, PushedSource, ROOT_FILE, api_fingerprint, checker_fingerprint};

/// The file, in the extension's folder. It names folders of this machine: it does not belong into a repository.
pub const PROJECT_FILE: &str = "rust-project.json";

/// Writes the project file of the extension in a folder, and the sources that it names into a folder of the cache,
/// unless they are there. Returns the file's path.
///
/// # Errors
/// `Refused` for a manifest that is none, or names a library that is not vetted; `Toolchain` without rustc; `Internal`
/// for a folder that cannot be written.
pub fn write_editor_project(folder: &Path, cache: Option<&Path>) -> Result<PathBuf, BuildError> {
    let source = PushedSource::read(folder)?;
    let cache = cache.map_or_else(default_cache_dir, Path::to_owned);
    let sources = sources_in(&cache.join("editor"))?;
    let mut crates = vec![described("sandstorm_api", &sources.join("sandstorm_api/src/lib.rs"), "2024", &[])];
    let mut dependencies = vec![json!({"crate": 0, "name": "sandstorm_api"})];
    for package in &source.manifest.libraries {
        let Some(library) = LIBRARIES.iter().find(|library| library.name == package) else {
            let names: Vec<&str> = LIBRARIES.iter().map(|library| library.name).collect();
            let message = format!("library {package:?} is not vetted; there are: {}", names.join(", "));
            return Err(BuildError::Internal(message));
        };
        let name = package.replace('-', "_");
        dependencies.push(json!({"crate": crates.len(), "name": name}));
        let root = sources.join(&name).join("src/lib.rs");
        crates.push(described(&name, &root, library.edition, &[]));
    }
    let root = fs::canonicalize(folder).map_err(|error| BuildError::io("finding the extension's folder", error))?;
    let name = source.manifest.name.replace('-', "_");
    let mut extension = described(&name, &root.join(ROOT_FILE), &source.manifest.edition, &dependencies);
    if let Some(extension) = extension.as_object_mut() {
        extension.insert("is_workspace_member".to_owned(), json!(true));
    }
    crates.push(extension);
    let project = json!({"sysroot": sysroot()?, "crates": crates});
    let path = root.join(PROJECT_FILE);
    let text = format!("{project:#}\n");
    fs::write(&path, text).map_err(|error| BuildError::io(&format!("writing {}", path.display()), error))?;
    Ok(path)
}

/// A crate as rust-analyzer is told of it; with its tests, which use the stand-in of the store.
fn described(name: &str, root: &Path, edition: &str, dependencies: &[Value]) -> Value {
    json!({
        "display_name": name,
        "root_module": root,
        "edition": edition,
        "deps": dependencies,
        "cfg": ["test", "debug_assertions", "feature=\"testing\""],
        "is_workspace_member": false,
        "source": {"include_dirs": [root.parent()], "exclude_dirs": []},
    })
}

/// The folder with the sources of the API and the libraries; written if there is none for this program's.
fn sources_in(folder: &Path) -> Result<PathBuf, BuildError> {
    let wanted = folder.join(format!("{:016x}{:016x}", api_fingerprint(), checker_fingerprint()));
    if wanted.is_dir() {
        return Ok(wanted);
    }
    let io = |error| BuildError::io(&format!("writing below {}", folder.display()), error);
    fs::create_dir_all(folder).map_err(io)?;
    let fresh = tempfile::Builder::new().prefix("making-").tempdir_in(folder).map_err(io)?;
    let libraries = LIBRARIES.iter().map(|library| (library.name.replace('-', "_"), library.files));
    for (name, files) in std::iter::once(("sandstorm_api".to_owned(), API)).chain(libraries) {
        for (path, text) in files {
            let path = fresh.path().join(&name).join("src").join(path);
            path.parent().map_or(Ok(()), fs::create_dir_all).map_err(io)?;
            fs::write(&path, text).map_err(io)?;
        }
    }
    match fs::rename(fresh.keep(), &wanted) {
        // Another one was first; its result is the same.
        Err(_) if wanted.is_dir() => Ok(wanted),
        renamed => renamed.map(|()| wanted).map_err(io),
    }
}

fn sysroot() -> Result<String, BuildError> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output();
    match output {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        _ => Err(BuildError::Toolchain("rustc is not there: install Rust from https://rustup.rs".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::extension_template::TEMPLATES;
    use super::super::offline::new_extension;
    use super::*;

    /// What the file says compiles, as an editor's own analysis reads it: each crate with the crates that it names.
    #[test]
    fn the_crates_of_a_project_compile_as_the_file_says() {
        let folder = tempfile::tempdir().expect("a folder");
        let extension = folder.path().join("hello");
        new_extension(&extension, "hello", &TEMPLATES[0]).expect("written");
        let manifest = extension.join("extension.toml");
        let text = fs::read_to_string(&manifest).expect("the manifest");
        fs::write(&manifest, text.replace("libraries = []", "libraries = [\"hmac-sha256\"]")).expect("written");
        let path = write_editor_project(&extension, Some(folder.path())).expect("written");
        let again = fs::read_to_string(&path).expect("the file");
        assert_eq!(write_editor_project(&extension, Some(folder.path())).expect("written"), path);
        assert_eq!(fs::read_to_string(&path).expect("the file"), again);
        let project: Value = serde_json::from_str(&again).expect("JSON");
        assert!(Path::new(project["sysroot"].as_str().expect("a folder")).join("lib/rustlib").is_dir());
        let crates = project["crates"].as_array().expect("crates");
        assert_eq!(crates.len(), 3);
        let text = |of: &Value, field: &str| of[field].as_str().expect("a text").to_owned();
        for one in crates {
            let mut command = Command::new("rustc");
            command.args(["--crate-type=rlib", "--emit=metadata", "--cap-lints=allow", "--cfg", "feature=\"testing\""]);
            command.args(["--crate-name", &text(one, "display_name"), "--edition", &text(one, "edition")]);
            command.arg("--out-dir").arg(folder.path()).arg("-L").arg(folder.path()).arg(text(one, "root_module"));
            for dependency in one["deps"].as_array().expect("a list") {
                let name = text(dependency, "name");
                let number = dependency["crate"].as_u64().expect("a number") as usize;
                assert_eq!(text(&crates[number], "display_name"), name);
                let file = folder.path().join(format!("lib{name}.rmeta"));
                command.arg("--extern").arg(format!("{name}={}", file.display()));
            }
            let output = command.output().expect("rustc");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        fs::write(&manifest, "name = \"hello\"\nlibraries = [\"left-pad\"]\n").expect("written");
        let refused = write_editor_project(&extension, Some(folder.path())).expect_err("it is not vetted").to_string();
        assert!(refused.contains("left-pad") && refused.contains("hmac-sha256"), "{refused}");
    }
}
