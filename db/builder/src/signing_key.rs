//! The builder's key: made at the first start, kept in the state folder, readable by its owner alone.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use rand::TryRngCore;

use super::BuildError;

/// Name of the key's file in the state folder.
pub const KEY_FILE: &str = "builder.key";

/// Makes the builder's state folder, which holds its key, with mode 0700; one that is there and lets others in is
/// closed to them.
///
/// # Errors
/// `Internal` when it cannot be made, or belongs to somebody else.
pub fn prepare_folder(state: &Path) -> Result<(), BuildError> {
    let wrong = |what: &str, error| BuildError::io(&format!("{what} {}", state.display()), error);
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(state);
    made.map_err(|error| wrong("creating", error))?;
    let mode = fs::metadata(state).map_err(|error| wrong("looking at", error))?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    fs::set_permissions(state, fs::Permissions::from_mode(0o700)).map_err(|error| wrong("closing to others", error))
}

/// What a signature covers besides the header: a signature made for another purpose is none here.
const CONTEXT: &[u8] = b"sandstorm artifact 1\0";

/// The builder's secret key.
pub struct BuilderKey(SigningKey);

impl fmt::Debug for BuilderKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("BuilderKey").field(&self.public()).finish()
    }
}

impl BuilderKey {
    /// Reads the key of a state folder, or makes one. Two builders that start at once end with the same key.
    ///
    /// # Errors
    /// `Internal` when the file cannot be read or written, is open to others, or is no key.
    pub fn open(state: &Path) -> Result<BuilderKey, BuildError> {
        let path = state.join(KEY_FILE);
        if !path.exists() {
            make(state, &path).map_err(|error| wrong(&path, &error))?;
        }
        BuilderKey::read(&path)
    }

    /// The public key of the builder that has worked in a state folder; `None` if none has. Makes and starts nothing.
    ///
    /// # Errors
    /// `Internal` when the file cannot be read, is open to others, or is no key.
    pub fn public_in(state: &Path) -> Result<Option<PublicKey>, BuildError> {
        let path = state.join(KEY_FILE);
        if !path.exists() {
            return Ok(None);
        }
        BuilderKey::read(&path).map(|key| Some(key.public()))
    }

    fn read(path: &Path) -> Result<BuilderKey, BuildError> {
        let wrong = |what: String| wrong(path, &what);
        let mode = fs::metadata(path).map_err(|error| wrong(error.to_string()))?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(wrong(format!("mode {:o} lets others read it; run `chmod 600` on it", mode & 0o777)));
        }
        let bytes = fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let seed: [u8; 32] = bytes.try_into().map_err(|_| wrong("it must hold 32 bytes".to_owned()))?;
        Ok(BuilderKey(SigningKey::from_bytes(&seed)))
    }

    /// A key from 32 secret bytes.
    pub fn from_seed(seed: [u8; 32]) -> BuilderKey {
        BuilderKey(SigningKey::from_bytes(&seed))
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    pub(super) fn sign(&self, header: &[u8]) -> [u8; 64] {
        self.0.sign(&[CONTEXT, header].concat()).to_bytes()
    }
}

fn wrong(path: &Path, what: &dyn fmt::Display) -> BuildError {
    BuildError::Internal(format!("key file {}: {what}", path.display()))
}

/// Makes a key in a file of its own and links it into place, which fails when there is one already.
fn make(state: &Path, path: &Path) -> std::io::Result<()> {
    let mut seed = [0_u8; 32];
    rand::rngs::OsRng.try_fill_bytes(&mut seed).map_err(std::io::Error::other)?;
    let folder = tempfile::Builder::new().prefix("key-").tempdir_in(state)?;
    let fresh = folder.path().join(KEY_FILE);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(&seed)?;
    file.sync_all()?;
    match fs::hard_link(&fresh, path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// The builder's public key, as servers are configured with it: 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// Reads 64 hexadecimal digits; `None` for anything else.
    pub fn from_hex(text: &str) -> Option<PublicKey> {
        let digits = text.trim().as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let mut bytes = [0_u8; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        VerifyingKey::from_bytes(&bytes).ok().filter(|key| !key.is_weak()).map(PublicKey)
    }

    /// The key as 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        self.0.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The first 8 bytes: what an artifact names its key by.
    pub(super) fn id(&self) -> [u8; 8] {
        self.0.as_bytes().first_chunk::<8>().copied().unwrap_or_default()
    }

    pub(super) fn verifies(&self, header: &[u8], signature: &[u8; 64]) -> bool {
        let signature = Signature::from_bytes(signature);
        self.0.verify_strict(&[CONTEXT, header].concat(), &signature).is_ok()
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.to_hex())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.to_hex())
    }
}
