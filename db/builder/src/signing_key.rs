//! The builder's key: made at the first start, stored in the state folder, readable by its owner alone.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use curve25519_dalek::edwards::CompressedEdwardsY;
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use super::BuildError;

/// Name of the key's file in the state folder.
pub const KEY_FILE: &str = "builder.key";

/// Makes the builder's state folder, which holds its key, with mode 0700. An existing folder that is open to others is
/// closed to them.
///
/// # Errors
/// `Internal` when it cannot be made, or belongs to another user.
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

/// Prefix of the signed bytes: a signature made for another purpose is not valid here.
const CONTEXT: &[u8] = b"sandstorm artifact 1\0";

/// The builder's secret key.
pub struct BuilderKey(Ed25519KeyPair);

impl fmt::Debug for BuilderKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("BuilderKey").field(&self.public()).finish()
    }
}

impl BuilderKey {
    /// Reads the key of a state folder, or makes one. Two builders that start at once end with the same key.
    ///
    /// # Errors
    /// `Internal` when the file cannot be read or written, is open to others, or holds no key.
    pub fn open(state: &Path) -> Result<BuilderKey, BuildError> {
        let path = state.join(KEY_FILE);
        if !path.exists() {
            make(state, &path).map_err(|error| wrong(&path, &error))?;
        }
        BuilderKey::read(&path)
    }

    /// The public key of the builder that has worked in a state folder; `None` if there was none. Makes and starts
    /// nothing.
    ///
    /// # Errors
    /// `Internal` when the file cannot be read, is open to others, or holds no key.
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
        let pair = Ed25519KeyPair::from_seed_unchecked(&bytes);
        pair.map(BuilderKey).map_err(|_| wrong("it must hold 32 bytes".to_owned()))
    }

    /// A key from 32 secret bytes.
    pub fn from_seed(seed: [u8; 32]) -> BuilderKey {
        Ed25519KeyPair::from_seed_unchecked(&seed).map(BuilderKey).expect("any 32 bytes are a seed")
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        let bytes = self.0.public_key().as_ref().first_chunk();
        PublicKey(bytes.copied().unwrap_or_default())
    }

    pub(super) fn sign(&self, header: &[u8]) -> [u8; 64] {
        let signature = self.0.sign(&[CONTEXT, header].concat());
        signature.as_ref().first_chunk().copied().unwrap_or([0; 64])
    }
}

fn wrong(path: &Path, what: &dyn fmt::Display) -> BuildError {
    BuildError::Internal(format!("key file {}: {what}", path.display()))
}

/// Makes a key in a file of its own and links it into place, which fails when there is one already.
fn make(state: &Path, path: &Path) -> std::io::Result<()> {
    let mut seed = [0_u8; 32];
    SystemRandom::new().fill(&mut seed).map_err(|_| std::io::Error::other("the system has no random numbers"))?;
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
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Reads 64 hexadecimal digits; `None` for anything else.
    pub fn from_hex(text: &str) -> Option<PublicKey> {
        let bytes: [u8; 32] = HEXLOWER_PERMISSIVE.decode(text.trim().as_bytes()).ok()?.try_into().ok()?;
        // Under a point of small order anyone can make signatures.
        let point = CompressedEdwardsY(bytes).decompress()?;
        (!point.is_small_order()).then_some(PublicKey(bytes))
    }

    /// The key as 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        HEXLOWER.encode(&self.0)
    }

    /// The first 8 bytes, by which an artifact names its key.
    pub(super) fn id(&self) -> [u8; 8] {
        self.0.first_chunk::<8>().copied().unwrap_or_default()
    }

    pub(super) fn verifies(&self, header: &[u8], signature: &[u8; 64]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(&[CONTEXT, header].concat(), signature).is_ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The key that ed25519-dalek 3.0 made of this seed: state folders and artifacts of older servers use it.
    const SEED: [u8; 32] = {
        let (mut seed, mut at) = ([0; 32], 0);
        while at < 32 {
            seed[at] = at as u8 * 7;
            at += 1;
        }
        seed
    };
    const PUBLIC: &str = "4d0ec3a0d03fefff93a9bcce2a24b406d46f44aeff1f7787daedb13caafa402c";
    const SIGNATURE: &str = "df4eadfe6bb0b85f72c8f03ca99e7b7fc9b9827d5c1244f1ca7ade514022dc8b\
                             cf9db81a9e1699fa08aa87840d8b71e57d9308967063ad0c247fe88ce602a80f";

    #[test]
    fn key_files_and_signatures_of_earlier_servers_are_good() {
        use std::os::unix::fs::PermissionsExt;
        let state = tempfile::tempdir().expect("a folder");
        let path = state.path().join(KEY_FILE);
        fs::write(&path, SEED).expect("the key's file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("our file");
        let key = BuilderKey::open(state.path()).expect("a key");
        assert_eq!(key.public().to_hex(), PUBLIC);
        let signature = HEXLOWER.decode(SIGNATURE.as_bytes()).expect("digits").try_into().expect("64 bytes");
        assert!(key.public().verifies(b"a header", &signature) && !key.public().verifies(b"a headed", &signature));
        assert_eq!(key.sign(b"a header"), signature, "and theirs are good there");
        fs::write(&path, [1; 31]).expect("the key's file");
        assert!(BuilderKey::open(state.path()).expect_err("no key").to_string().contains("32 bytes"));
    }

    #[test]
    fn what_is_no_point_or_a_weak_one_is_no_key() {
        let text = |bytes: &[u8]| PublicKey::from_hex(&HEXLOWER.encode(bytes)).is_some();
        assert!(PublicKey::from_hex(&format!(" {}\n", PUBLIC.to_uppercase())).is_some(), "digits of either case");
        assert!(!text(&[1; 31]) && !text(&[1; 33]) && PublicKey::from_hex(&"g".repeat(64)).is_none());
        // y = 2 belongs to no point.
        let number = |low: u8| [&[low][..], &[0; 31]].concat();
        assert!(!text(&number(2)));
        // The points of order 4, 1 and 2: under them signatures can be made without a key.
        let minus_one = [&[0xEC][..], &[0xFF; 30], &[0x7F]].concat();
        assert!(!text(&number(0)) && !text(&number(1)) && !text(&minus_one));
    }
}
