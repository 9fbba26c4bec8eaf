//! The frames between a server and a builder: length of the JSON (u32, little-endian), length of the bytes that follow
//! it (u32), JSON, bytes.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Diagnostic, PushedCode};
use sandstorm_net::CodeTier;

/// JSON of one frame, bytes: a source of the largest size, escaped.
pub const MAX_JSON_BYTES: usize = 16 << 20;
/// Bytes of one frame: the largest library.
pub(super) const MAX_BLOB_BYTES: usize = 64 << 20;

/// A source or a module to build.
///
/// Unknown fields are refused: a builder that knows less than its server must not leave out what it was asked for. A
/// field with the value that older servers meant is not sent, and taken for that value where it is missing.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuildRequest {
    /// Id of the tenant that pushes, on its server.
    pub tenant: u32,
    /// The version of the artifact.
    pub version: u64,
    /// What to build.
    pub source: PushedCode,
    /// The tier to build for. Servers that do not name it have only the native one.
    #[serde(default = "native", skip_serializing_if = "is_native")]
    pub tier: CodeTier,
    /// Patterns that a native source must not have, beside the checker's rules and the builder's own list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<String>,
    /// Whether the source is only checked: no library comes back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub check_only: bool,
}

fn native() -> CodeTier {
    CodeTier::Native
}

fn is_native(tier: &CodeTier) -> bool {
    *tier == CodeTier::Native
}

/// A builder's description of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BuilderHello {
    /// The builder's public key, as text.
    pub public_key: String,
    /// Fingerprint of its compiler.
    pub compiler: u64,
    /// Its compiler's release.
    pub release: String,
    /// Describes the confinement of its compilers.
    pub confinement: String,
}

/// The JSON beside an artifact, which is the frame's bytes.
#[derive(Serialize, Deserialize)]
pub struct BuildReply {
    /// The compiler's warnings.
    pub warnings: Vec<Diagnostic>,
}

/// Writes a frame: the length of the JSON, the JSON, the length of the blob, the blob.
///
/// # Errors
/// Those of the writer, and JSON that cannot be written.
pub fn write_frame(out: &mut impl Write, json: &impl Serialize, blob: &[u8]) -> io::Result<()> {
    let json = serde_json::to_vec(json)?;
    let length = |bytes: usize| u32::try_from(bytes).map_err(|_| io::Error::other("a frame is too long"));
    out.write_all(&length(json.len())?.to_le_bytes())?;
    out.write_all(&length(blob.len())?.to_le_bytes())?;
    out.write_all(&json)?;
    out.write_all(blob)?;
    out.flush()
}

/// Reads a frame; `None` at the end of the stream.
///
/// # Errors
/// Those of the reader; a frame that is too long, or whose JSON has another form.
pub fn read_frame<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<Option<(T, Vec<u8>)>> {
    let mut word = [0_u8; 4];
    match input.read_exact(&mut word) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let json_len = u32::from_le_bytes(word) as usize;
    input.read_exact(&mut word)?;
    let blob_len = u32::from_le_bytes(word) as usize;
    if json_len > MAX_JSON_BYTES || blob_len > MAX_BLOB_BYTES {
        return Err(io::Error::other("a frame is too long"));
    }
    // The buffer grows with the received bytes, not with the announced length.
    let mut json = Vec::new();
    let mut blob = Vec::new();
    let read = input.take(json_len as u64).read_to_end(&mut json)?;
    let read_blob = input.take(blob_len as u64).read_to_end(&mut blob)?;
    if read < json_len || read_blob < blob_len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some((serde_json::from_slice(&json)?, blob)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PushedSource, SourceFile};

    fn request(tier: CodeTier) -> BuildRequest {
        let text = "#![no_std]".to_owned();
        let source = PushedSource::new("name = \"x\"", vec![SourceFile { path: "src/lib.rs".to_owned(), text }]);
        let source = source.expect("a source").into();
        BuildRequest { tenant: 1, version: 2, source, tier, denied: Vec::new(), check_only: false }
    }

    #[test]
    fn a_server_without_tiers_means_the_native_one_and_a_builder_without_them_is_asked_as_before() {
        let sent = serde_json::to_value(request(CodeTier::Native)).expect("JSON");
        let fields: Vec<&str> = sent.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(fields, ["source", "tenant", "version"], "all that older builders know");
        let read: BuildRequest = serde_json::from_value(sent).expect("a request of an older server");
        assert_eq!(read.tier, CodeTier::Native);
    }

    #[test]
    fn a_builder_that_knows_less_refuses_what_it_is_asked() {
        let mut sent = serde_json::to_value(request(CodeTier::Sandboxed)).expect("JSON");
        assert_eq!(sent["tier"], "sandboxed", "an older builder refuses the unknown field");
        sent["later"] = true.into();
        let refused = serde_json::from_value::<BuildRequest>(sent).err().expect("an unknown field").to_string();
        assert!(refused.contains("unknown field `later`"), "{refused}");
        let more = BuildRequest { denied: vec!["dyn".to_owned()], check_only: true, ..request(CodeTier::Native) };
        let sent = serde_json::to_value(more).expect("JSON");
        assert_eq!((&sent["denied"][0], &sent["check_only"]), (&"dyn".into(), &true.into()), "it refuses these, too");
        let mut sent = serde_json::to_value(request(CodeTier::Sandboxed)).expect("JSON");
        sent["tier"] = "process".into();
        assert!(serde_json::from_value::<BuildRequest>(sent).is_err(), "an unknown tier");
    }
}
