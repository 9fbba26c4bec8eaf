//! The builder's output: a library with a signed header that names its tenant, its source and the tools that made it.
//!
//! Bytes, little-endian: magic (8), length of the header (u32), header, signature (64), length of the library (u64),
//! library. The header holds the library's digest, so the signature covers all of it. It covers the magic, too, since
//! the third version of the format: a header cannot be passed off as one of another version.

use std::sync::Arc;

use ring::digest::{Context, SHA256};
use sandstorm_net::{CodeOrigin, CodeTier};
use sandstorm_schema::ExtensionSchema;

use super::limits;
use super::signing_key::{BuilderKey, PublicKey};

/// First bytes of every artifact, of all formats.
const MAGIC_WORD: &[u8] = b"sandart";
/// The same with the format's version, which is the last.
const MAGIC: [u8; 8] = *b"sandart\x04";
/// The first bytes of the format before there were schemas.
const SCHEMALESS_MAGIC: [u8; 8] = *b"sandart\x03";
/// The first bytes of the format before there were tiers: its headers name none, and its libraries are native.
const TIERLESS_MAGIC: [u8; 8] = *b"sandart\x02";
/// The first bytes of formats that are no longer read: their headers do not say by which rules the source was checked.
const OLD_MAGIC: [u8; 8] = *b"sandart\x01";

/// What is wrong with an artifact whose version is above that of [`MAGIC`].
const NEWER: &str = "it is of a newer format than this server reads: build it with a builder of the server's release, \
                     or push the source";

/// The version of an artifact's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArtifactFormat {
    /// Without a tier.
    Tierless,
    /// Without a schema.
    Schemaless,
    /// The one that is written.
    Current,
}

impl ArtifactFormat {
    fn magic(self) -> [u8; 8] {
        match self {
            ArtifactFormat::Tierless => TIERLESS_MAGIC,
            ArtifactFormat::Schemaless => SCHEMALESS_MAGIC,
            ArtifactFormat::Current => MAGIC,
        }
    }
}

/// The tenant, name, versions and digests of an artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactHeader {
    /// Id of the tenant it was built for.
    pub tenant: u32,
    /// Version of the sandstorm ABI it speaks.
    pub abi_version: u32,
    /// The server's number of this version of the extension: grows with every push.
    pub version: u64,
    /// Fingerprint of the compiler that made it.
    pub compiler: u64,
    /// Fingerprint of the extension API it was built against.
    pub api_fingerprint: u64,
    /// Fingerprint of the rules that its source passed.
    pub checker: u64,
    /// SHA-256 of the source or the module, see [`PushedCode::digest`](super::PushedCode::digest).
    pub source_digest: [u8; 32],
    /// SHA-256 of the library.
    pub elf_digest: [u8; 32],
    /// The tier that the library was built for.
    pub tier: CodeTier,
    /// What the library was built from.
    pub origin: CodeOrigin,
    /// The extension's name.
    pub name: String,
    /// The types of its functions; `None`: its entry is the plain one.
    pub schema: Option<Arc<ExtensionSchema>>,
}

/// A signed library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// The builder's statements about the library.
    pub header: ArtifactHeader,
    /// First 8 bytes of the builder's public key.
    pub key_id: [u8; 8],
    /// The builder's signature over the header.
    pub signature: [u8; 64],
    /// The library.
    pub elf: Vec<u8>,
    /// The format that it was read from.
    format: ArtifactFormat,
}

/// The server's requirements on an artifact, checked before any byte of it is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactRequirements {
    /// The tenant that loads it.
    pub tenant: u32,
    /// The name under which it is loaded.
    pub name: String,
    /// The tier in which the extension of that name runs.
    pub tier: CodeTier,
    /// Fingerprint of the compiler of the server's builder. `None`: the server has no builder to compare with, and
    /// relies on the keys that it trusts.
    pub compiler: Option<u64>,
    /// The server's API fingerprint.
    pub api_fingerprint: u64,
    /// The server's own rules.
    pub checker: u64,
    /// The server's ABI version.
    pub abi_version: u32,
    /// The highest version of that name that this server has ever loaded for the tenant, if any. Only a higher one
    /// passes.
    pub highest: Option<u64>,
}

/// The reason why an artifact is not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArtifactError {
    /// It is not an artifact, or it is truncated.
    #[error("malformed: not an artifact: {0}")]
    Malformed(&'static str),
    /// Signed by a key that this server does not trust.
    #[error("untrusted signer: the server does not trust the key that signed the artifact")]
    WrongKey,
    /// The header or the library differs from what was signed.
    #[error("tampered: the artifact was changed after it was signed")]
    Tampered,
    /// Built for another tenant.
    #[error("the artifact was built for tenant {found}, not for tenant {expected}")]
    WrongTenant {
        /// In the header.
        found: u32,
        /// Asked for.
        expected: u32,
    },
    /// Built under another name.
    #[error("the artifact is of extension {found:?}, not of {expected:?}")]
    WrongName {
        /// In the header.
        found: String,
        /// Asked for.
        expected: String,
    },
    /// Built for another tier.
    #[error("the artifact is of the {found} tier, and this server asks for {expected}")]
    WrongTier {
        /// In the header.
        found: CodeTier,
        /// Asked for.
        expected: CodeTier,
    },
    /// Built by another compiler.
    #[error(
        "the artifact was built by another compiler ({found:016x}, this server has {expected:016x}): push the source"
    )]
    WrongCompiler {
        /// In the header.
        found: u64,
        /// Asked for.
        expected: u64,
    },
    /// Built for another ABI.
    #[error("the artifact speaks ABI version {found}, this server {expected}: push the source")]
    WrongAbi {
        /// In the header.
        found: u32,
        /// Asked for.
        expected: u32,
    },
    /// Built against another API.
    #[error(
        "the artifact was built against another API ({found:016x}, this server has {expected:016x}): push the source"
    )]
    WrongApi {
        /// In the header.
        found: u64,
        /// Asked for.
        expected: u64,
    },
    /// The source was checked by other rules, which may have allowed what is refused now.
    #[error(
        "the artifact was made by a builder with other rules ({found:016x}, this server has {expected:016x}): push the source again"
    )]
    WrongRules {
        /// In the header.
        found: u64,
        /// Asked for.
        expected: u64,
    },
    /// It is older than a version that was loaded before, even if that is unloaded now.
    #[error("downgrade: the artifact is version {found}, but version {highest} was loaded before")]
    Downgraded {
        /// In the header.
        found: u64,
        /// The highest that was ever loaded.
        highest: u64,
    },
    /// It is the version that was loaded last.
    #[error("replay: version {0} was loaded before; each version is loaded once")]
    Replayed(u64),
}

impl ArtifactError {
    /// A code for programs, one for each reason.
    pub fn code(&self) -> &'static str {
        match self {
            ArtifactError::Malformed(_) => "artifact_malformed",
            ArtifactError::WrongKey => "artifact_foreign_key",
            ArtifactError::Tampered => "artifact_tampered",
            ArtifactError::WrongTenant { .. } => "artifact_other_tenant",
            ArtifactError::WrongName { .. } => "artifact_other_name",
            ArtifactError::WrongTier { .. } => "artifact_other_tier",
            ArtifactError::WrongCompiler { .. } => "artifact_stale_compiler",
            ArtifactError::WrongAbi { .. } => "artifact_stale_abi",
            ArtifactError::WrongApi { .. } => "artifact_stale_api",
            ArtifactError::WrongRules { .. } => "artifact_stale_rules",
            ArtifactError::Downgraded { .. } => "artifact_downgraded",
            ArtifactError::Replayed(_) => "artifact_replayed",
        }
    }

    /// Advice for the reader of the error.
    pub fn hint(&self) -> &'static str {
        match self {
            ArtifactError::Malformed(_) => "upload the file that `sandstorm builder build -o FILE` wrote, whole",
            ArtifactError::WrongKey => {
                "have the operator add the builder's key (`sandstorm builder key`) to builder.trusted_keys, or push the source"
            }
            ArtifactError::Tampered => "copy the file again from where it was built",
            ArtifactError::WrongTenant { .. } => {
                "build it with --tenant ID, the id that `sandstorm tenant show` prints"
            }
            ArtifactError::WrongName { .. } => "upload it under the name in its manifest",
            ArtifactError::WrongTier { .. } => {
                "build it with the --code that `sandstorm tenant show` prints, or push the source; the operator may \
                 change the policy (`sandstorm tenant set NAME --code TIER`)"
            }
            ArtifactError::WrongCompiler { .. } | ArtifactError::WrongAbi { .. } | ArtifactError::WrongApi { .. } => {
                "build it anew with the server's compiler and sandstorm, or push the source"
            }
            ArtifactError::WrongRules { .. } => {
                "push the source again, or build it anew with a builder of the server's own release"
            }
            ArtifactError::Downgraded { .. } | ArtifactError::Replayed(_) => {
                "build it anew with a higher --version; `sandstorm ext show NAME` prints those that were loaded"
            }
        }
    }
}

/// The tiers and what there is in them, by their bytes in a header. There are no native modules.
const TIER_BYTES: [(u8, (CodeTier, CodeOrigin)); 3] = [
    (1, (CodeTier::Native, CodeOrigin::Source)),
    (2, (CodeTier::Sandboxed, CodeOrigin::Source)),
    (3, (CodeTier::Sandboxed, CodeOrigin::Module)),
];

/// The byte of a header; 0, which no server reads, for what there is not.
fn tier_byte(tier: CodeTier, origin: CodeOrigin) -> u8 {
    TIER_BYTES.iter().find(|(_, one)| *one == (tier, origin)).map_or(0, |(byte, _)| *byte)
}

fn tier_of(byte: u8) -> Option<(CodeTier, CodeOrigin)> {
    TIER_BYTES.iter().find(|(one, _)| *one == byte).map(|(_, named)| *named)
}

impl ArtifactHeader {
    fn encode(&self, key_id: [u8; 8], format: ArtifactFormat) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + self.name.len());
        out.extend(key_id);
        out.extend(self.tenant.to_le_bytes());
        out.extend(self.abi_version.to_le_bytes());
        out.extend(self.version.to_le_bytes());
        out.extend(self.compiler.to_le_bytes());
        out.extend(self.api_fingerprint.to_le_bytes());
        out.extend(self.checker.to_le_bytes());
        out.extend(self.source_digest);
        out.extend(self.elf_digest);
        if format != ArtifactFormat::Tierless {
            out.push(tier_byte(self.tier, self.origin));
        }
        if format == ArtifactFormat::Current {
            let schema = self.schema.as_ref().map(|schema| schema.to_json()).unwrap_or_default();
            out.extend(u32::try_from(schema.len()).unwrap_or(u32::MAX).to_le_bytes());
            out.extend(schema.as_bytes());
        }
        out.extend(self.name.as_bytes());
        out
    }

    /// The bytes that are signed.
    fn signed(&self, key_id: [u8; 8], format: ArtifactFormat) -> Vec<u8> {
        let header = self.encode(key_id, format);
        match format {
            ArtifactFormat::Tierless => header,
            ArtifactFormat::Schemaless | ArtifactFormat::Current => [&format.magic()[..], &header].concat(),
        }
    }

    fn decode(bytes: &[u8], format: ArtifactFormat) -> Option<([u8; 8], ArtifactHeader)> {
        let mut rest = bytes;
        let key_id = take_array(&mut rest)?;
        let mut header = ArtifactHeader {
            tenant: u32::from_le_bytes(take_array(&mut rest)?),
            abi_version: u32::from_le_bytes(take_array(&mut rest)?),
            version: u64::from_le_bytes(take_array(&mut rest)?),
            compiler: u64::from_le_bytes(take_array(&mut rest)?),
            api_fingerprint: u64::from_le_bytes(take_array(&mut rest)?),
            checker: u64::from_le_bytes(take_array(&mut rest)?),
            source_digest: take_array(&mut rest)?,
            elf_digest: take_array(&mut rest)?,
            tier: CodeTier::Native,
            origin: CodeOrigin::Source,
            name: String::new(),
            schema: None,
        };
        if format != ArtifactFormat::Tierless {
            (header.tier, header.origin) = tier_of(u8::from_le_bytes(take_array(&mut rest)?))?;
        }
        if format == ArtifactFormat::Current {
            let len = u32::from_le_bytes(take_array(&mut rest)?) as usize;
            let (schema, after) = rest.split_at_checked(len)?;
            rest = after;
            if !schema.is_empty() {
                let text = std::str::from_utf8(schema).ok()?;
                let schema = ExtensionSchema::parse(text).ok()?;
                // The signature is of the text that builders write: another one of the same schema is not theirs.
                if schema.to_json() != text {
                    return None;
                }
                header.schema = Some(Arc::new(schema));
            }
        }
        header.name = String::from_utf8(rest.to_vec()).ok().filter(|name| name.len() <= limits::NAME_BYTES)?;
        // Later versions need room above this one.
        if header.version > limits::MAX_VERSION {
            return None;
        }
        Some((key_id, header))
    }
}

fn take_array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*first)
}

/// SHA-256 of some bytes.
pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update(bytes);
    hasher.finish()
}

/// SHA-256 of consecutive parts.
pub(super) struct Sha256(Context);

impl Sha256 {
    pub(super) fn new() -> Sha256 {
        Sha256(Context::new(&SHA256))
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds bytes with their length in front, so that no other parts give the same bytes.
    pub(super) fn update_with_length(&mut self, bytes: &[u8]) {
        self.update(&(bytes.len() as u64).to_le_bytes());
        self.update(bytes);
    }

    pub(super) fn finish(self) -> [u8; 32] {
        self.0.finish().as_ref().first_chunk().copied().unwrap_or_default()
    }
}

impl Artifact {
    /// Signs a library. `header.elf_digest` is set here.
    pub fn sign(key: &BuilderKey, header: ArtifactHeader, elf: Vec<u8>) -> Artifact {
        Artifact::sign_as(key, header, elf, ArtifactFormat::Current)
    }

    /// As builders signed that knew no tiers.
    #[cfg(test)]
    pub(super) fn sign_without_tier(key: &BuilderKey, header: ArtifactHeader, elf: Vec<u8>) -> Artifact {
        Artifact::sign_as(key, header, elf, ArtifactFormat::Tierless)
    }

    /// As builders signed that knew no schemas.
    #[cfg(test)]
    pub(super) fn sign_without_schema(key: &BuilderKey, header: ArtifactHeader, elf: Vec<u8>) -> Artifact {
        Artifact::sign_as(key, header, elf, ArtifactFormat::Schemaless)
    }

    fn sign_as(key: &BuilderKey, mut header: ArtifactHeader, elf: Vec<u8>, format: ArtifactFormat) -> Artifact {
        header.elf_digest = sha256(&elf);
        let key_id = key.public().id();
        let signature = key.sign(&header.signed(key_id, format));
        Artifact { header, key_id, signature, elf, format }
    }

    /// The artifact as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let header = self.header.encode(self.key_id, self.format);
        let mut out = Vec::with_capacity(MAGIC.len() + 4 + header.len() + 64 + 8 + self.elf.len());
        out.extend(self.format.magic());
        out.extend(u32::try_from(header.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend(header);
        out.extend(self.signature);
        out.extend((self.elf.len() as u64).to_le_bytes());
        out.extend(&self.elf);
        out
    }

    /// Parses an artifact's bytes. Nothing is verified yet: see [`Artifact::verify`].
    ///
    /// # Errors
    /// `Malformed`.
    pub fn decode(bytes: &[u8]) -> Result<Artifact, ArtifactError> {
        let cut = ArtifactError::Malformed("it is cut short");
        let mut rest = bytes;
        let format = match take_array(&mut rest) {
            Some(MAGIC) => ArtifactFormat::Current,
            Some(SCHEMALESS_MAGIC) => ArtifactFormat::Schemaless,
            Some(TIERLESS_MAGIC) => ArtifactFormat::Tierless,
            Some(OLD_MAGIC) => return Err(ArtifactError::Malformed("it is of an older format: push the source again")),
            Some(magic) if magic.starts_with(MAGIC_WORD) && magic > MAGIC => {
                return Err(ArtifactError::Malformed(NEWER));
            }
            _ => return Err(ArtifactError::Malformed("it does not start as one")),
        };
        let header_len = u32::from_le_bytes(take_array(&mut rest).ok_or(cut.clone())?) as usize;
        if header_len > rest.len() {
            return Err(cut);
        }
        let (header, mut rest) = rest.split_at(header_len);
        let (key_id, header) =
            ArtifactHeader::decode(header, format).ok_or(ArtifactError::Malformed("its header is unreadable"))?;
        let signature = take_array(&mut rest).ok_or(cut.clone())?;
        let elf_len = u64::from_le_bytes(take_array(&mut rest).ok_or(cut.clone())?);
        match elf_len.cmp(&(rest.len() as u64)) {
            std::cmp::Ordering::Greater => return Err(cut),
            std::cmp::Ordering::Less => return Err(ArtifactError::Malformed("bytes follow its end")),
            std::cmp::Ordering::Equal => {}
        }
        Ok(Artifact { header, key_id, signature, elf: rest.to_vec(), format })
    }

    /// Checks key, signature and digest, and then the header against the server's requirements. `keys` are those that
    /// the server trusts.
    ///
    /// # Errors
    /// The first check that fails, one error each.
    pub fn verify(&self, keys: &[PublicKey], expected: &ArtifactRequirements) -> Result<(), ArtifactError> {
        let header = &self.header;
        let mut named = keys.iter().filter(|key| key.id() == self.key_id).peekable();
        if named.peek().is_none() {
            return Err(ArtifactError::WrongKey);
        }
        let signed = header.signed(self.key_id, self.format);
        if !named.any(|key| key.verifies(&signed, &self.signature)) || sha256(&self.elf) != header.elf_digest {
            return Err(ArtifactError::Tampered);
        }
        if header.tenant != expected.tenant {
            return Err(ArtifactError::WrongTenant { found: header.tenant, expected: expected.tenant });
        }
        if header.name != expected.name {
            return Err(ArtifactError::WrongName { found: header.name.clone(), expected: expected.name.clone() });
        }
        if header.tier != expected.tier {
            return Err(ArtifactError::WrongTier { found: header.tier, expected: expected.tier });
        }
        if header.abi_version != expected.abi_version {
            return Err(ArtifactError::WrongAbi { found: header.abi_version, expected: expected.abi_version });
        }
        if header.api_fingerprint != expected.api_fingerprint {
            return Err(ArtifactError::WrongApi { found: header.api_fingerprint, expected: expected.api_fingerprint });
        }
        if let Some(compiler) = expected.compiler.filter(|compiler| *compiler != header.compiler) {
            return Err(ArtifactError::WrongCompiler { found: header.compiler, expected: compiler });
        }
        if header.checker != expected.checker {
            return Err(ArtifactError::WrongRules { found: header.checker, expected: expected.checker });
        }
        match expected.highest {
            Some(highest) if header.version < highest => {
                Err(ArtifactError::Downgraded { found: header.version, highest })
            }
            Some(highest) if header.version == highest => Err(ArtifactError::Replayed(highest)),
            _ => Ok(()),
        }
    }
}
