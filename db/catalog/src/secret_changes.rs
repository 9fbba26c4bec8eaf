//! Changes of tenants' secrets, and the key that seals them.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::directory::Directory;
use super::error::{DirectoryError, check_name};
use super::secrets::{SECRET_KEY_FILE, SecretSealer};
use super::tenant_ref::TenantRef;
use crate::limits::{SECRET_BYTES, SECRETS};

impl Directory {
    /// Uses the key of a state directory for secrets, and makes one if there is none. Called before anything is
    /// restored.
    ///
    /// # Errors
    /// The key's file cannot be read or written, is open to others, or is no key.
    pub fn open_secret_key(&self, state: &Path) -> io::Result<()> {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", state.join(SECRET_KEY_FILE).display()))
        };
        *self.sealer.write() = SecretSealer::open(state).map_err(named)?;
        Ok(())
    }

    /// Sets a secret of a tenant. Calls that are running see the value that was there when they began.
    ///
    /// # Errors
    /// No such tenant; a name that is not allowed; a value that is longer than [`SECRET_BYTES`]; [`SECRETS`] are
    /// reached.
    pub fn set_secret<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        name: &str,
        value: &[u8],
        now_ms: u64,
    ) -> Result<(), DirectoryError> {
        check_name("secret", name)?;
        if value.is_empty() || value.len() > SECRET_BYTES {
            return Err(DirectoryError::SecretLength(value.len()));
        }
        self.change_view(tenant, |_, view| {
            let id = view.tenant.id;
            if !view.secrets.has(name) && view.secrets.len() >= SECRETS {
                return Err(DirectoryError::TooManySecrets(view.tenant.name.clone()));
            }
            view.secrets = Arc::new(view.secrets.with(&self.sealer.read(), (id, name), value, now_ms));
            Ok(())
        })
    }

    /// Removes a secret of a tenant.
    ///
    /// # Errors
    /// No such tenant or secret.
    pub fn remove_secret<'a>(&self, tenant: impl Into<TenantRef<'a>>, name: &str) -> Result<(), DirectoryError> {
        self.change_view(tenant, |_, view| {
            if !view.secrets.has(name) {
                let tenant = view.tenant.name.clone();
                return Err(DirectoryError::UnknownSecret { tenant, secret: name.to_owned() });
            }
            view.secrets = Arc::new(view.secrets.without(name));
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use data_encoding::BASE64;

    use super::*;
    use crate::journal::Journal;
    use crate::{DirectoryOptions, NewTenant};
    use sandstorm_store::Epochs;

    /// A directory with the state of a folder, as at a start of the server.
    fn started(state: &Path) -> Arc<Directory> {
        let directory = Directory::with_options(Epochs::new(), DirectoryOptions::default());
        directory.open_secret_key(state).expect("a key");
        let (journal, kept) = Journal::open(state).expect("a journal");
        directory.restore(&kept).expect("it fits");
        directory.start_journal(journal).expect("it can be written");
        directory
    }

    fn value(directory: &Directory, name: &str) -> Option<Vec<u8>> {
        let snapshot = directory.snapshot();
        snapshot.find("shop").expect("the tenant").secrets.get(name).map(<[u8]>::to_vec)
    }

    #[test]
    fn a_secret_outlives_the_process_and_is_nowhere_in_the_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = started(folder.path());
        directory.create_tenant(NewTenant::named("shop")).expect("there is room");
        directory.set_secret("shop", "payments", b"correct horse battery", 7).expect("it is set");
        directory.set_secret("shop", "gone", b"staple", 8).expect("it is set");
        directory.remove_secret("shop", "gone").expect("it was there");
        assert_eq!(format!("{:?}", directory.snapshot().find("shop").unwrap().secrets), "{\"payments\"}");
        drop(directory);
        for entry in fs::read_dir(folder.path()).expect("the folder") {
            let path = entry.expect("an entry").path();
            let text = fs::read(&path).unwrap_or_default();
            for word in [&b"correct horse"[..], b"staple", &BASE64.encode(b"correct horse").into_bytes()[..16]] {
                assert!(!text.windows(word.len()).any(|part| part == word), "{}", path.display());
            }
        }
        let directory = started(folder.path());
        assert_eq!(value(&directory, "payments").as_deref(), Some(&b"correct horse battery"[..]));
        assert_eq!(value(&directory, "gone"), None);
        let snapshot = directory.snapshot();
        let listed: Vec<_> = snapshot.find("shop").unwrap().secrets.list().collect();
        assert_eq!(listed, [("payments", 7, true)]);
    }

    #[test]
    fn without_its_key_a_secret_is_absent_and_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = started(folder.path());
        directory.create_tenant(NewTenant::named("shop")).expect("there is room");
        directory.set_secret("shop", "payments", b"value", 7).expect("it is set");
        drop(directory);
        let key = folder.path().join(SECRET_KEY_FILE);
        let kept = fs::read(&key).expect("the key");
        fs::remove_file(&key).expect("it was there");
        let directory = started(folder.path());
        assert_eq!(value(&directory, "payments"), None);
        assert!(directory.snapshot().find("shop").unwrap().secrets.list().all(|(_, _, opens)| !opens));
        drop(directory);
        fs::write(&key, kept).expect("the old key comes back");
        assert_eq!(value(&started(folder.path()), "payments").as_deref(), Some(&b"value"[..]));
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("the mode");
        let directory = Directory::new(Epochs::new());
        assert!(directory.open_secret_key(folder.path()).unwrap_err().to_string().contains("chmod 600"));
    }

    #[test]
    fn limits_hold() {
        let directory = Directory::new(Epochs::new());
        directory.create_tenant(NewTenant::named("shop")).expect("there is room");
        let set = |name: &str, bytes: usize| directory.set_secret("shop", name, &vec![1; bytes], 0);
        assert!(matches!(set("a b", 1), Err(DirectoryError::InvalidName { .. })));
        assert_eq!(set("a", 0), Err(DirectoryError::SecretLength(0)));
        assert_eq!(set("a", SECRET_BYTES + 1), Err(DirectoryError::SecretLength(SECRET_BYTES + 1)));
        (0..SECRETS).for_each(|number| set(&format!("s{number}"), SECRET_BYTES).expect("there is room"));
        assert_eq!(set("more", 1), Err(DirectoryError::TooManySecrets("shop".to_owned())));
        set("s0", 1).expect("one that is there can be replaced");
        assert!(matches!(directory.remove_secret("shop", "more"), Err(DirectoryError::UnknownSecret { .. })));
    }
}
