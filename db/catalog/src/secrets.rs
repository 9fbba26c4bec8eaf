//! Secrets of tenants: small values that the code of a tenant reads by name, such as keys of other services.
//!
//! They are sealed in the journal, with a key that lies in a file of its own: a copy of the journal alone shows none.
//! Nothing lists a value or logs one. A secret that does not open (the key's file was lost or replaced) is kept as it
//! is, and counts as absent until it is set again.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use data_encoding::BASE64;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use super::journal::JournalSecret;

/// The file of the key, in the state directory.
pub const SECRET_KEY_FILE: &str = "secrets.key";
/// Bytes of the key.
const KEY_BYTES: usize = 32;
/// What is sealed is bound to this purpose, its tenant and its name.
const CONTEXT: &[u8] = b"sandstorm secret 1";

/// Seals secrets for the journal, and opens them.
pub(super) struct SecretSealer(LessSafeKey);

impl SecretSealer {
    /// A sealer of a key.
    fn new(key: &[u8; KEY_BYTES]) -> SecretSealer {
        // The length is the algorithm's.
        let key = UnboundKey::new(&CHACHA20_POLY1305, key).expect("32 bytes are a key");
        SecretSealer(LessSafeKey::new(key))
    }

    /// A sealer with a key of its own: what it has sealed is lost with it.
    pub(super) fn of_this_process() -> SecretSealer {
        SecretSealer::new(&random())
    }

    /// Reads the key of a state directory, or makes one.
    pub(super) fn open(state: &Path) -> io::Result<SecretSealer> {
        let path = state.join(SECRET_KEY_FILE);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.permissions().mode() & 0o077 != 0 => {
                return Err(io::Error::other("others can read it; run `chmod 600` on it"));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(state, &path)?,
            Err(error) => return Err(error),
        }
        let bytes = fs::read(&path)?;
        let key = bytes.try_into().map_err(|_| io::Error::other("it must hold 32 bytes"))?;
        Ok(SecretSealer::new(&key))
    }

    fn context(tenant: u32, name: &str) -> Vec<u8> {
        [CONTEXT, &tenant.to_le_bytes(), name.as_bytes()].concat()
    }

    /// Seals a value, as text.
    fn seal(&self, tenant: u32, name: &str, value: &[u8]) -> String {
        let (nonce, mut sealed) = (random::<NONCE_LEN>(), value.to_vec());
        let aad = Aad::from(SecretSealer::context(tenant, name));
        let of = Nonce::assume_unique_for_key(nonce);
        // It fails beyond 256 GiB only.
        self.0.seal_in_place_append_tag(of, aad, &mut sealed).expect("a short value can be sealed");
        BASE64.encode(&[&nonce[..], &sealed].concat())
    }

    /// Opens a sealed value; `None` if it was not sealed with this key, for this tenant and name.
    fn unseal(&self, tenant: u32, name: &str, sealed: &str) -> Option<Box<[u8]>> {
        let bytes = BASE64.decode(sealed.as_bytes()).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let (nonce, mut value) = (Nonce::assume_unique_for_key(*nonce), sealed.to_vec());
        let aad = Aad::from(SecretSealer::context(tenant, name));
        Some(self.0.open_in_place(nonce, aad, &mut value).ok()?.to_vec().into())
    }
}

/// Random bytes of the kernel.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // It fails only where the kernel has no random numbers, in which case nothing works.
    SystemRandom::new().fill(&mut bytes).expect("random numbers");
    bytes
}

/// Makes a key, which is on the disk before it is used.
fn make(state: &Path, path: &Path) -> io::Result<()> {
    let fresh = state.join(format!("{SECRET_KEY_FILE}.new"));
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(&random::<KEY_BYTES>())?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    fs::File::open(state)?.sync_all()
}

/// A secret.
#[derive(Clone)]
struct TenantSecret {
    /// `None`: it does not open.
    value: Option<Arc<[u8]>>,
    kept: JournalSecret,
}

/// The secrets of a tenant, by name.
#[derive(Clone, Default)]
pub struct TenantSecrets(BTreeMap<Box<str>, TenantSecret>);

impl std::fmt::Debug for TenantSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Values are left out: this gets into logs.
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl TenantSecrets {
    /// The value of a secret.
    #[inline]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name)?.value.as_deref()
    }

    /// Names in their order, each with the time at which it was set in milliseconds since 1970, and whether it opens.
    pub fn list(&self) -> impl Iterator<Item = (&str, u64, bool)> {
        self.0.iter().map(|(name, secret)| (&**name, secret.kept.set_at_ms, secret.value.is_some()))
    }

    /// Returns whether there is a secret of that name, opened or not.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The number of secrets.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The same with another secret, sealed for the tenant.
    pub(super) fn with(
        &self,
        sealer: &SecretSealer,
        (tenant, name): (u32, &str),
        value: &[u8],
        set_at_ms: u64,
    ) -> TenantSecrets {
        let kept = JournalSecret { sealed: sealer.seal(tenant, name, value), set_at_ms };
        let mut secrets = self.clone();
        secrets.0.insert(name.into(), TenantSecret { value: Some(value.into()), kept });
        secrets
    }

    /// The same without one.
    pub(super) fn without(&self, name: &str) -> TenantSecrets {
        let mut secrets = self.clone();
        secrets.0.remove(name);
        secrets
    }

    /// The persisted form.
    pub(super) fn journal(&self) -> BTreeMap<String, JournalSecret> {
        self.0.iter().map(|(name, secret)| (name.to_string(), secret.kept.clone())).collect()
    }

    /// The secrets of a tenant from their persisted form.
    pub(super) fn restored(
        sealer: &SecretSealer,
        (tenant, tenant_name): (u32, &str),
        kept: &BTreeMap<String, JournalSecret>,
    ) -> TenantSecrets {
        let secret = |(name, kept): (&String, &JournalSecret)| {
            let value = sealer.unseal(tenant, name, &kept.sealed).map(Arc::from);
            if value.is_none() {
                tracing::error!(
                    tenant = tenant_name,
                    secret = name.as_str(),
                    "the secret does not open with {SECRET_KEY_FILE} of the state directory; it counts as absent until it is set again"
                );
            }
            (name.as_str().into(), TenantSecret { value, kept: kept.clone() })
        };
        TenantSecrets(kept.iter().map(secret).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_for_its_tenant_and_name_alone() {
        let sealer = SecretSealer::of_this_process();
        let sealed = sealer.seal(1, "a", b"value");
        assert_ne!(sealer.seal(1, "a", b"value"), sealed, "nobody sees that two are equal");
        assert_eq!(sealer.unseal(1, "a", &sealed).as_deref(), Some(&b"value"[..]));
        for (tenant, name, text) in [(2, "a", &*sealed), (1, "b", &sealed), (1, "a", &sealed[4..]), (1, "a", "!")] {
            assert_eq!(sealer.unseal(tenant, name, text), None);
        }
        assert_eq!(SecretSealer::of_this_process().unseal(1, "a", &sealed), None);
    }
}
