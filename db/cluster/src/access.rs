//! How a server reaches the etcd of its cluster: TLS, a certificate of its own, a user with a password.

use std::path::{Path, PathBuf};

use sandstorm_jetstream::{read_access_text, read_password};
use serde::Deserialize;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

use crate::ClusterAddress;

/// The files and the user with which a cluster's etcd is reached. Without them requests to it are unauthenticated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EtcdAccess {
    /// The authority that has signed the etcd's certificate (PEM); the public ones if left out.
    pub ca: Option<PathBuf>,
    /// This server's certificate for the etcd (PEM).
    pub certificate: Option<PathBuf>,
    /// The key of that certificate (PEM).
    pub key: Option<PathBuf>,
    /// The user of the etcd.
    pub user: Option<String>,
    /// The file with that user's password.
    pub password_file: Option<PathBuf>,
}

/// A reason that an etcd cannot be reached so, and the keys that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdAccessError {
    /// The reason, and what to do.
    pub text: String,
    /// The keys, such as `etcd.user`.
    pub keys: Vec<&'static str>,
}

/// An etcd, with all that is needed to ask it.
#[derive(Clone)]
pub struct EtcdEndpoint {
    pub(crate) address: ClusterAddress,
    pub(crate) tls: Option<TlsConfig>,
    pub(crate) user: Option<EtcdUser>,
}

#[derive(Clone)]
pub(crate) struct EtcdUser {
    pub(crate) name: String,
    pub(crate) password: String,
}

impl std::fmt::Debug for EtcdEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = self.user.as_ref().map(|user| &user.name);
        f.debug_struct("EtcdEndpoint").field("address", &self.address).field("user", &user).finish_non_exhaustive()
    }
}

impl From<ClusterAddress> for EtcdEndpoint {
    /// An etcd that is asked without TLS and without a user.
    fn from(address: ClusterAddress) -> EtcdEndpoint {
        EtcdEndpoint { address, tls: None, user: None }
    }
}

impl EtcdAccess {
    /// Checks what goes together, without the files.
    ///
    /// # Errors
    /// [`EtcdAccessError`].
    pub fn check(&self, address: &ClusterAddress) -> Result<(), EtcdAccessError> {
        let refuse =
            |text: &str, keys: &[&'static str]| Err(EtcdAccessError { text: text.to_owned(), keys: keys.to_vec() });
        if self.certificate.is_some() != self.key.is_some() {
            return refuse("a certificate for the etcd and its key go together", &["etcd.certificate", "etcd.key"]);
        }
        if self.user.is_some() != self.password_file.is_some() {
            return refuse("a user of the etcd and its password go together", &["etcd.user", "etcd.password_file"]);
        }
        if !address.is_encrypted && (self.ca.is_some() || self.certificate.is_some()) {
            let text = "certificates are for an etcd that is reached over TLS: write etcds://HOST:2379/NAME";
            return refuse(text, &["cluster", "etcd.ca", "etcd.certificate"]);
        }
        if !address.is_encrypted && self.user.is_some() && !address.is_on_this_machine() {
            let text = "the password would cross the network for all to read: write etcds://HOST:2379/NAME";
            return refuse(text, &["cluster", "etcd.user"]);
        }
        Ok(())
    }

    /// Reads the files.
    ///
    /// # Errors
    /// What [`EtcdAccess::check`] refuses, and a file that cannot be read or is not what it should be.
    pub fn read(&self, address: &ClusterAddress) -> Result<EtcdEndpoint, EtcdAccessError> {
        self.check(address)?;
        let mut tls = TlsConfig::builder();
        if let Some(path) = &self.ca {
            let authorities = certificates(path, "etcd.ca")?;
            tls = tls.root_certs(RootCerts::new_with_certs(&authorities));
        }
        if let (Some(path), Some(key)) = (&self.certificate, &self.key) {
            let own = certificates(path, "etcd.certificate")?;
            tls = tls.client_cert(Some(ClientCert::new_with_certs(&own, private_key(key)?)));
        }
        let user = match (&self.user, &self.password_file) {
            (Some(name), Some(path)) => {
                let password = read_password(path).map_err(|why| refused(why, "etcd.password_file"))?;
                Some(EtcdUser { name: name.clone(), password })
            }
            _ => None,
        };
        let tls = address.is_encrypted.then(|| tls.build());
        Ok(EtcdEndpoint { address: address.clone(), tls, user })
    }
}

fn refused(text: String, key: &'static str) -> EtcdAccessError {
    EtcdAccessError { text, keys: vec![key] }
}

fn wrong(path: &Path, key: &'static str, why: &str) -> EtcdAccessError {
    refused(format!("{}: {why}", path.display()), key)
}

fn certificates(path: &Path, key: &'static str) -> Result<Vec<Certificate<'static>>, EtcdAccessError> {
    let text = read_access_text(path).map_err(|why| refused(why, key))?;
    let mut found = Vec::new();
    for item in parse_pem(text.as_bytes()) {
        match item {
            Ok(PemItem::Certificate(certificate)) => found.push(certificate),
            Ok(_) => {}
            Err(error) => return Err(wrong(path, key, &error.to_string())),
        }
    }
    if found.is_empty() { Err(wrong(path, key, "has no certificate (PEM)")) } else { Ok(found) }
}

fn private_key(path: &Path) -> Result<PrivateKey<'static>, EtcdAccessError> {
    let text = read_access_text(path).map_err(|why| refused(why, "etcd.key"))?;
    PrivateKey::from_pem(text.as_bytes()).map_err(|error| wrong(path, "etcd.key", &format!("is no key (PEM): {error}")))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn access(change: impl FnOnce(&mut EtcdAccess)) -> EtcdAccess {
        let mut access = EtcdAccess::default();
        change(&mut access);
        access
    }

    #[test]
    fn what_does_not_go_together_or_would_show_a_password_is_refused() {
        let path = || Some(PathBuf::from("/nowhere"));
        let user = |access: &mut EtcdAccess| (access.user, access.password_file) = (Some("u".into()), path());
        for (address, access, why) in [
            ("etcds://a:1/x", access(|it| it.certificate = path()), "go together"),
            ("etcds://a:1/x", access(|it| it.key = path()), "go together"),
            ("etcds://a:1/x", access(|it| it.user = Some("u".into())), "go together"),
            ("etcd://a:1/x", access(|it| it.ca = path()), "etcds://"),
            ("etcd://a:1/x", access(user), "for all to read"),
            ("etcd://127.0.0.1:1,a:1/x", access(user), "for all to read"),
        ] {
            let error = access.check(&address.parse().unwrap()).unwrap_err();
            assert!(error.text.contains(why) && !error.keys.is_empty(), "{error:?}");
        }
        for address in ["etcd://127.0.0.1:1,[::1]:1,localhost:2/x", "etcds://a:1/x"] {
            assert_eq!(access(user).check(&address.parse().unwrap()), Ok(()));
        }
    }

    #[test]
    fn files_that_are_not_what_they_should_be_are_named() {
        let folder = std::env::temp_dir().join(format!("sandstorm-etcd-access-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (junk, empty) = (folder.join("junk"), folder.join("empty"));
        fs::write(&junk, "-----BEGIN CERTIFICATE-----\nno\n").unwrap();
        fs::write(&empty, "\n").unwrap();
        let address: ClusterAddress = "etcds://a:1/x".parse().unwrap();
        for (access, file) in [
            (access(|it| it.ca = Some(junk.clone())), "junk"),
            (access(|it| it.ca = Some(empty.clone())), "empty"),
            (access(|it| it.ca = Some(folder.join("gone"))), "gone"),
            (access(|it| it.ca = Some(folder.clone())), "sandstorm-etcd-access"),
            (access(|it| (it.user, it.password_file) = (Some("u".into()), Some(empty.clone()))), "empty"),
        ] {
            let error = access.read(&address).unwrap_err();
            assert!(error.text.contains(file), "{error:?}");
        }
        fs::write(&junk, "secret\n").unwrap();
        let access = access(|it| (it.user, it.password_file) = (Some("u".into()), Some(junk)));
        let endpoint = access.read(&address).unwrap();
        assert_eq!(endpoint.user.as_ref().map(|user| user.password.as_str()), Some("secret"));
        assert!(!format!("{endpoint:?}").contains("secret"));
        fs::remove_dir_all(folder).unwrap();
    }
}
