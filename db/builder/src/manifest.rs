//! The content of a push: one manifest, `extension.toml`, and `.rs` files under `src/`.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::artifact::Sha256;
use super::diagnostic::Diagnostic;
use super::{BuildError, limits};
use sandstorm_sandbox::code_map::ARGUMENTS_MAX_BYTES;

/// Name of the manifest's file.
pub const MANIFEST_FILE: &str = "extension.toml";
/// The file that every extension has: the root of its crate.
pub const ROOT_FILE: &str = "src/lib.rs";

/// The contents of `extension.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The extension's name: 1 to 64 of `a-z`, `0-9`, `_`, `-`, the first a letter or digit.
    pub name: String,
    /// The tenant's own version of it, for people to read.
    #[serde(default = "first_version")]
    pub version: String,
    /// Rust edition; `"2024"`.
    #[serde(default = "edition_2024")]
    pub edition: String,
    /// Version of the extension API; `1`.
    #[serde(default = "api_1")]
    pub api: u32,
    /// Names of vetted libraries that the extension uses.
    #[serde(default)]
    pub libraries: Vec<String>,
    /// Bytes of a call's arguments that are kept where the server ends it, for `sandstorm kills`; 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub keep_arguments: u32,
    /// Triggers that call the extension: a push makes them, or changes them.
    #[serde(default, rename = "trigger", skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<ManifestTrigger>,
}

/// A `[[trigger]]` of a manifest. The server knows what its texts may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestTrigger {
    /// Its name.
    pub name: String,
    /// Of an extension with several typed functions: which one it calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Calls the extension so often, such as `5s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// Calls it by the five fields of cron, in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Calls it for changes of this table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// For which changes: `put`, `delete`, `clear`, `expire`; all but expiries if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<String>,
    /// Changes of a call, at most, which are its arguments together; without it each call has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// The arguments of calls by the clock; JSON for a typed function.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub args: String,
    /// Times that a call which failed is made again; the server's default if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn first_version() -> String {
    "0.1.0".to_owned()
}

fn edition_2024() -> String {
    "2024".to_owned()
}

fn api_1() -> u32 {
    1
}

impl Manifest {
    /// What stands for the manifest of a module that was made elsewhere, which has none.
    pub(super) fn of_module() -> Manifest {
        Manifest {
            name: "tenant".to_owned(),
            version: first_version(),
            edition: edition_2024(),
            api: api_1(),
            libraries: Vec::new(),
            keep_arguments: 0,
            triggers: Vec::new(),
        }
    }

    /// Reads and checks a manifest.
    ///
    /// # Errors
    /// `Refused`, with the line, for anything that is wrong.
    pub fn parse(text: &str) -> Result<Manifest, BuildError> {
        if text.len() > limits::MANIFEST_BYTES {
            return Err(refuse(text, 0..0, format!("a manifest may have {} bytes at most", limits::MANIFEST_BYTES)));
        }
        let manifest: Manifest = toml::from_str(text).map_err(|error| {
            refuse(text, error.span().unwrap_or(0..0), error.message().lines().next().unwrap_or("not TOML").to_owned())
        })?;
        manifest.validate().map_err(|(field, message)| refuse(text, line_of(text, field), message))?;
        Ok(manifest)
    }

    /// Checks the values; on failure returns the field's name and the reason.
    pub(super) fn validate(&self) -> Result<(), (&'static str, String)> {
        check_name(&self.name).map_err(|reason| ("name", reason))?;
        if self.version.len() > limits::NAME_BYTES || !self.version.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(("version", format!("the version must be at most {} visible characters", limits::NAME_BYTES)));
        }
        if self.edition != "2024" {
            return Err(("edition", format!("edition {:?} is not supported: write \"2024\"", self.edition)));
        }
        if self.api != 1 {
            return Err(("api", format!("api version {} is not supported: this builder has 1", self.api)));
        }
        if self.libraries.len() > limits::LIBRARIES {
            return Err(("libraries", format!("at most {} libraries may be named", limits::LIBRARIES)));
        }
        if self.keep_arguments > ARGUMENTS_MAX_BYTES {
            let message = format!("at most {ARGUMENTS_MAX_BYTES} bytes of the arguments may be kept");
            return Err(("keep_arguments", message));
        }
        if self.triggers.len() > limits::TRIGGERS {
            return Err(("trigger", format!("at most {} triggers may be declared", limits::TRIGGERS)));
        }
        for (index, trigger) in self.triggers.iter().enumerate() {
            let name = &trigger.name;
            if self.triggers.iter().take(index).any(|earlier| earlier.name == *name) {
                return Err(("trigger", format!("trigger {name:?} is declared twice")));
            }
            if [&trigger.every, &trigger.cron, &trigger.on].into_iter().flatten().count() != 1 {
                return Err(("trigger", format!("trigger {name:?} needs one of `every`, `cron` and `on`")));
            }
        }
        for (index, library) in self.libraries.iter().enumerate() {
            if self.libraries.iter().take(index).any(|earlier| earlier == library) {
                return Err(("libraries", format!("library {library:?} is named twice")));
            }
        }
        Ok(())
    }
}

/// Checks an extension's name; on failure returns the reason.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let name_char = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    // A server takes no other first character, either.
    let begins_well = name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
    if !begins_well || name.len() > limits::NAME_BYTES || !name.bytes().all(name_char) {
        let most = limits::NAME_BYTES;
        return Err(format!("the name must be 1 to {most} of a-z, 0-9, _ and -, and begin with a letter or digit"));
    }
    Ok(())
}

/// The span of the line that sets a field, or the start of the text.
fn line_of(text: &str, field: &str) -> std::ops::Range<usize> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let code = line.trim_end();
        if code.strip_prefix(field).is_some_and(|rest| rest.trim_start().starts_with('=')) {
            return start..start + code.len();
        }
        start += line.len();
    }
    0..0
}

fn refuse(text: &str, span: std::ops::Range<usize>, message: String) -> BuildError {
    BuildError::Refused(vec![Diagnostic::refused(MANIFEST_FILE, text, span, "manifest", &message)])
}

/// One source file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Path inside the crate: `src/….rs`, with forward slashes.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// A whole extension as pushed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushedSource {
    /// The manifest.
    pub manifest: Manifest,
    /// All files, `src/lib.rs` among them, each path once.
    pub files: Vec<SourceFile>,
}

impl PushedSource {
    /// Makes a source of a manifest's text and the files.
    ///
    /// # Errors
    /// `Refused` when the manifest, a path or a size is wrong.
    pub fn new(manifest: &str, files: Vec<SourceFile>) -> Result<PushedSource, BuildError> {
        let source = PushedSource { manifest: Manifest::parse(manifest)?, files };
        source.validate()?;
        Ok(source)
    }

    /// Checks manifest, paths and sizes again: a source that came over a wire was not made by [`PushedSource::new`].
    ///
    /// # Errors
    /// `Refused`.
    pub fn validate(&self) -> Result<(), BuildError> {
        let refuse = |file: &str, message: String| {
            Err(BuildError::Refused(vec![Diagnostic::refused(file, "", 0..0, "source", &message)]))
        };
        if let Err((_, message)) = self.manifest.validate() {
            return refuse(MANIFEST_FILE, message);
        }
        if self.files.len() > limits::SOURCE_FILES {
            let message = format!("{} files: at most {} may be pushed", self.files.len(), limits::SOURCE_FILES);
            return refuse(MANIFEST_FILE, message);
        }
        let mut total = 0;
        let mut seen = std::collections::HashSet::new();
        for file in &self.files {
            let shown: String = file.path.chars().take(limits::PATH_BYTES).collect();
            if let Some(why) = path_error(&file.path) {
                return refuse(&shown.escape_debug().to_string(), why.to_owned());
            }
            if !seen.insert(file.path.as_str()) {
                return refuse(&shown, "this path was sent twice".to_owned());
            }
            if file.text.len() > limits::FILE_BYTES {
                let message = format!("{} bytes: a file may have {} at most", file.text.len(), limits::FILE_BYTES);
                return refuse(&shown, message);
            }
            total += file.text.len() + 2 * file.text.bytes().filter(is_long_in_json).count();
        }
        if total > limits::SOURCE_BYTES {
            let (most, triple) = (limits::SOURCE_BYTES, "control characters count three times");
            let message = format!("{total} bytes of source: at most {most} may be pushed ({triple})");
            return refuse(MANIFEST_FILE, message);
        }
        if !seen.contains(ROOT_FILE) {
            return refuse(MANIFEST_FILE, format!("an extension needs the file {ROOT_FILE}"));
        }
        Ok(())
    }

    /// SHA-256 over manifest and files, in the order of their paths.
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        let mut add = |bytes: &[u8]| hasher.update_with_length(bytes);
        add(self.manifest.name.as_bytes());
        add(self.manifest.version.as_bytes());
        add(self.manifest.edition.as_bytes());
        add(&self.manifest.api.to_le_bytes());
        add(&(self.manifest.libraries.len() as u64).to_le_bytes());
        for library in &self.manifest.libraries {
            add(library.as_bytes());
        }
        if self.manifest.keep_arguments != 0 {
            add(&self.manifest.keep_arguments.to_le_bytes());
        }
        let mut files: Vec<&SourceFile> = self.files.iter().collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        for file in files {
            add(file.path.as_bytes());
            add(file.text.as_bytes());
        }
        hasher.finish()
    }

    /// Reads an extension from a directory: `extension.toml` and every `.rs` file under `src/`. Symbolic links are
    /// refused; other files are ignored.
    ///
    /// # Errors
    /// `Refused` for a source that the server would refuse too; `Internal` when a file cannot be read.
    pub fn read(folder: &Path) -> Result<PushedSource, BuildError> {
        let manifest_path = folder.join(MANIFEST_FILE);
        let manifest = std::fs::read_to_string(&manifest_path).map_err(|error| {
            BuildError::Internal(format!(
                "reading {}: {error}; `sandstorm ext new` writes a first one",
                manifest_path.display()
            ))
        })?;
        let mut files = Vec::new();
        collect(&folder.join("src"), "src", 0, &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        PushedSource::new(&manifest, files)
    }
}

/// Whether JSON writes a byte with six: a push is JSON of at most two bytes for each byte of source.
fn is_long_in_json(byte: &u8) -> bool {
    byte.is_ascii_control() && !matches!(byte, b'\t' | b'\n' | b'\r' | 8 | 12 | 127)
}

/// The reason why a path may not be pushed; `None` when it may.
fn path_error(path: &str) -> Option<&'static str> {
    if path.len() > limits::PATH_BYTES {
        return Some("the path is too long");
    }
    let Some(rest) = path.strip_prefix("src/") else { return Some("files must lie under src/") };
    let Some(stem) = rest.strip_suffix(".rs") else { return Some("only .rs files may be pushed") };
    let part_ok = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !part.bytes().all(|byte| byte == b'_')
    };
    if !stem.split('/').all(part_ok) {
        return Some("each part of a path must be letters, digits and underscores");
    }
    if rest.split('/').count() > limits::PATH_DEPTH {
        return Some("the path is nested too deeply");
    }
    None
}

fn collect(folder: &Path, inside: &str, depth: usize, files: &mut Vec<SourceFile>) -> Result<(), BuildError> {
    let unreadable =
        |path: &Path, error: std::io::Error| BuildError::Internal(format!("reading {}: {error}", path.display()));
    let refuse = |path: &str, message: &str| {
        Err(BuildError::Refused(vec![Diagnostic::refused(path, "", 0..0, "source", message)]))
    };
    for entry in std::fs::read_dir(folder).map_err(|error| unreadable(folder, error))? {
        let entry = entry.map_err(|error| unreadable(folder, error))?;
        let path = entry.path();
        let shown = format!("{inside}/{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type().map_err(|error| unreadable(&path, error))?;
        let is_source = path.extension().is_some_and(|extension| extension == "rs");
        if kind.is_symlink() && (is_source || path.is_dir()) {
            return refuse(&shown, "symbolic links are not followed: put the file itself here");
        } else if kind.is_dir() {
            if depth + 1 >= limits::PATH_DEPTH {
                return refuse(&shown, "the folder is nested too deeply");
            }
            collect(&path, &shown, depth + 1, files)?;
        } else if kind.is_file() && is_source {
            if files.len() >= limits::SOURCE_FILES {
                return refuse(&shown, "too many files");
            }
            if entry.metadata().map_err(|error| unreadable(&path, error))?.len() > limits::FILE_BYTES as u64 {
                return refuse(&shown, &format!("a file may have {} bytes at most", limits::FILE_BYTES));
            }
            let text = std::fs::read_to_string(&path).map_err(|error| unreadable(&path, error))?;
            files.push(SourceFile { path: shown, text });
        }
    }
    Ok(())
}
