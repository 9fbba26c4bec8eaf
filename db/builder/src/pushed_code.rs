//! What a tenant pushes: Rust source, or a WebAssembly module that was made elsewhere.

use std::fmt;
use std::path::Path;

use sandstorm_net::CodeOrigin;
use serde::{Deserialize, Serialize};

use super::artifact::sha256;
use super::diagnostic::Diagnostic;
use super::manifest::check_name;
use super::{BuildError, PushedSource, limits};

/// A WebAssembly module as pushed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PushedModule {
    /// The extension's name: 1 to 64 of `a-z`, `0-9`, `_`, `-`, the first a letter or digit.
    pub name: String,
    /// The module, as base64 in JSON.
    #[serde(with = "base64")]
    pub wasm: Vec<u8>,
}

/// What the builder is asked to build.
///
/// In JSON it is one or the other without a name of its own: a builder that knows no modules takes a module for a
/// source without a manifest, and refuses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PushedCode {
    /// Rust source.
    Source(PushedSource),
    /// A WebAssembly module.
    Module(PushedModule),
}

/// First bytes of a module of WebAssembly 1.0.
const MODULE_MAGIC: [u8; 8] = *b"\0asm\x01\0\0\0";
/// First bytes of a component, which has modules within it.
const COMPONENT_MAGIC: [u8; 8] = *b"\0asm\x0d\0\x01\0";

impl PushedModule {
    /// Makes a module to push of a name and the module's bytes.
    ///
    /// # Errors
    /// `Refused` when the name or the size is wrong, or the bytes are no module's.
    pub fn new(name: impl Into<String>, wasm: Vec<u8>) -> Result<PushedModule, BuildError> {
        let module = PushedModule { name: name.into(), wasm };
        module.validate()?;
        Ok(module)
    }

    /// Reads a module from a file. `name` is the extension's; without one it is the file's name up to its first dot.
    ///
    /// # Errors
    /// As for [`PushedModule::new`]; `Internal` when the file cannot be read.
    pub fn read(file: &Path, name: Option<&str>) -> Result<PushedModule, BuildError> {
        let unreadable = |error| BuildError::Internal(format!("reading {}: {error}", file.display()));
        let len = std::fs::metadata(file).map_err(unreadable)?.len();
        if len > limits::MODULE_BYTES as u64 {
            return Err(too_long(len as usize));
        }
        let of_file = || {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.split('.').next().unwrap_or_default().to_owned()
        };
        let name = name.map_or_else(of_file, str::to_owned);
        PushedModule::new(name, std::fs::read(file).map_err(unreadable)?)
    }

    /// Checks name, size and first bytes again: a module that came over a wire was not made by [`PushedModule::new`].
    ///
    /// # Errors
    /// `Refused`.
    pub fn validate(&self) -> Result<(), BuildError> {
        check_name(&self.name).map_err(|reason| refuse(&reason))?;
        if self.wasm.len() > limits::MODULE_BYTES {
            return Err(too_long(self.wasm.len()));
        }
        match self.wasm.first_chunk::<8>() {
            Some(&MODULE_MAGIC) => Ok(()),
            Some(&COMPONENT_MAGIC) => Err(refuse(
                "it is a component of WebAssembly, not a module: build it as a core module, without a component adapter",
            )),
            _ if self.wasm.trim_ascii_start().starts_with(b"(module") => {
                Err(refuse("it is WebAssembly as text: make a binary module of it (wat2wasm)"))
            }
            _ => {
                Err(refuse("it is no WebAssembly module: it does not begin with \\0asm and version 1 (at offset 0x0)"))
            }
        }
    }
}

impl fmt::Debug for PushedModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushedModule").field("name", &self.name).field("bytes", &self.wasm.len()).finish()
    }
}

impl PushedCode {
    /// The extension's name.
    pub fn name(&self) -> &str {
        match self {
            PushedCode::Source(source) => &source.manifest.name,
            PushedCode::Module(module) => &module.name,
        }
    }

    /// The tenant's own version of it, for people; empty in a module, which has no manifest.
    pub fn manifest_version(&self) -> &str {
        match self {
            PushedCode::Source(source) => &source.manifest.version,
            PushedCode::Module(_) => "",
        }
    }

    /// Which of the two it is.
    pub fn origin(&self) -> CodeOrigin {
        match self {
            PushedCode::Source(_) => CodeOrigin::Source,
            PushedCode::Module(_) => CodeOrigin::Module,
        }
    }

    /// SHA-256: of a source as [`PushedSource::digest`] has it, of a module's bytes.
    pub fn digest(&self) -> [u8; 32] {
        match self {
            PushedCode::Source(source) => source.digest(),
            PushedCode::Module(module) => sha256(&module.wasm),
        }
    }
}

impl From<PushedSource> for PushedCode {
    fn from(source: PushedSource) -> PushedCode {
        PushedCode::Source(source)
    }
}

impl From<&PushedSource> for PushedCode {
    fn from(source: &PushedSource) -> PushedCode {
        PushedCode::Source(source.clone())
    }
}

impl From<PushedModule> for PushedCode {
    fn from(module: PushedModule) -> PushedCode {
        PushedCode::Module(module)
    }
}

fn refuse(reason: &str) -> BuildError {
    BuildError::Refused(vec![Diagnostic::plain(reason)])
}

fn too_long(len: usize) -> BuildError {
    refuse(&format!("the module has {len} bytes: at most {} are allowed", limits::MODULE_BYTES))
}

/// Bytes as base64.
mod base64 {
    use data_encoding::BASE64;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        BASE64.decode(String::deserialize(from)?.as_bytes()).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SourceFile;

    fn reason(refused: Result<PushedModule, BuildError>) -> String {
        match refused {
            Err(BuildError::Refused(found)) => found[0].message.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_no_module_is_refused_with_what_it_is() {
        let magic = MODULE_MAGIC.to_vec();
        assert!(PushedModule::new("m", magic.clone()).is_ok());
        assert!(reason(PushedModule::new("M", magic.clone())).contains("1 to 64 of a-z, 0-9, _ and -"));
        assert!(reason(PushedModule::new("m", COMPONENT_MAGIC.to_vec())).contains("a component"));
        assert!(reason(PushedModule::new("m", b"\n(module)".to_vec())).contains("wat2wasm"));
        assert!(reason(PushedModule::new("m", magic[..7].to_vec())).contains("no WebAssembly module"));
        let long = [magic, vec![0; limits::MODULE_BYTES]].concat();
        assert!(reason(PushedModule::new("m", long)).contains("at most 4194304 are allowed"));
    }

    #[test]
    fn sources_are_written_as_before_and_modules_as_what_older_builders_refuse() {
        let file = SourceFile { path: "src/lib.rs".to_owned(), text: "#![no_std]".to_owned() };
        let source = PushedSource::new("name = \"x\"", vec![file]).expect("a source");
        let written = serde_json::to_value(PushedCode::from(source.clone())).expect("JSON");
        assert_eq!(written, serde_json::to_value(&source).expect("JSON"));
        let module: PushedCode = PushedModule::new("m", MODULE_MAGIC.to_vec()).expect("a module").into();
        let written = serde_json::to_value(&module).expect("JSON");
        assert_eq!(written, serde_json::json!({"name": "m", "wasm": "AGFzbQEAAAA="}));
        assert!(serde_json::from_value::<PushedSource>(written.clone()).is_err(), "an older builder");
        assert_eq!(serde_json::from_value::<PushedCode>(written).expect("a module"), module);
        assert_eq!((module.origin(), module.name(), module.manifest_version()), (CodeOrigin::Module, "m", ""));
    }
}
