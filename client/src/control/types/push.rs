//! The JSON bodies about pushes of sources.

use serde::{Deserialize, Serialize};

use super::{BuildDiagnostic, ExtensionStatus};

/// One source file of a push.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtensionSourceFile {
    /// Its path inside the extension, with `/`: `src/lib.rs`.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// `PUT /v1/tenants/{tenant}/extensions/{name}`: an extension's source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtensionSource {
    /// Text of `extension.toml`.
    pub manifest: String,
    /// The `.rs` files.
    pub files: Vec<ExtensionSourceFile>,
}

/// The answer to a push that was taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PushOutcome {
    /// The extension as it now runs.
    pub extension: ExtensionStatus,
    /// The version that was pushed: the one that runs now, unless it was only staged.
    pub version: u64,
    /// Warnings of the compiler, if any.
    pub diagnostics: Vec<BuildDiagnostic>,
    /// Milliseconds that the check and the compilation took.
    pub build_ms: u64,
}
