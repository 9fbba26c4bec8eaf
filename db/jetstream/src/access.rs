//! What it takes to reach a NATS server: TLS, and a user with a password.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;

use crate::access_file::{read_access_text, read_password};
use crate::address::NatsAddress;

/// The files and the user with which NATS servers are reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NatsAccess {
    /// The authority that has signed the servers' certificates (PEM), for `natss://`.
    pub ca: Option<PathBuf>,
    /// The user.
    pub user: Option<String>,
    /// The file with that user's password.
    pub password_file: Option<PathBuf>,
    /// The monitoring ports of all servers that may have a stream, `http://HOST:8222` each.
    pub monitors: Vec<String>,
}

/// What is sent to a server of a user.
#[derive(Clone)]
pub(crate) struct NatsUser {
    pub(crate) name: String,
    pub(crate) password: String,
}

/// NATS servers, with all that is needed to speak to them.
#[derive(Clone)]
pub struct NatsEndpoint {
    pub(crate) address: NatsAddress,
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) user: Option<NatsUser>,
}

impl std::fmt::Debug for NatsEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = self.user.as_ref().map(|user| &user.name);
        f.debug_struct("NatsEndpoint").field("address", &self.address).field("user", &user).finish_non_exhaustive()
    }
}

impl NatsAccess {
    /// Looks whether what is set goes together.
    ///
    /// # Errors
    /// One line: what does not.
    pub fn check(&self, address: &NatsAddress) -> Result<(), String> {
        if self.user.is_some() != self.password_file.is_some() {
            return Err("a user of the NATS servers and its password file go together".to_owned());
        }
        if address.is_encrypted != self.ca.is_some() {
            return Err("natss:// and the file with the authority of the servers' certificates go together".to_owned());
        }
        if self.user.is_some() && !address.is_encrypted && !address.is_on_this_machine() {
            return Err("the password would cross the network for all to read: write natss://HOST:4222/NAME".to_owned());
        }
        Ok(())
    }

    /// Reads the files.
    ///
    /// # Errors
    /// One line: what does not go together, or a file that is not what it should be.
    pub fn read(&self, address: &NatsAddress) -> Result<NatsEndpoint, String> {
        self.check(address)?;
        let user = match (&self.user, &self.password_file) {
            (Some(name), Some(path)) => Some(NatsUser { name: name.clone(), password: read_password(path)? }),
            _ => None,
        };
        let tls = self.ca.as_deref().map(tls_config).transpose()?;
        Ok(NatsEndpoint { address: address.clone(), tls, user })
    }
}

fn tls_config(ca: &Path) -> Result<Arc<ClientConfig>, String> {
    let text = read_access_text(ca)?;
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", ca.display());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
        let certificate = certificate.map_err(|error| failed(&error))?;
        roots.add(certificate).map_err(|error| failed(&error))?;
    }
    if roots.is_empty() {
        return Err(failed(&"has no certificate (PEM)"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| failed(&error))?.with_root_certificates(roots).with_no_client_auth();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_does_not_go_together_would_show_a_password_or_is_no_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (empty, secret) = (folder.path().join("empty"), folder.path().join("secret"));
        fs::write(&empty, "\n").unwrap();
        fs::write(&secret, "geheim\n").unwrap();
        let access = |ca: Option<&Path>, user: Option<&str>, password: Option<&Path>| NatsAccess {
            ca: ca.map(Path::to_owned),
            user: user.map(str::to_owned),
            password_file: password.map(Path::to_owned),
            monitors: Vec::new(),
        };
        let gone = folder.path().join("gone");
        for (address, access, why) in [
            ("nats://127.0.0.1/x", access(None, Some("u"), None), "go together"),
            ("nats://127.0.0.1/x", access(Some(&empty), None, None), "go together"),
            ("natss://a/x", access(None, None, None), "go together"),
            ("nats://a/x", access(None, Some("u"), Some(&secret)), "for all to read"),
            ("nats://127.0.0.1/x", access(None, Some("u"), Some(&empty)), "is empty"),
            ("nats://127.0.0.1/x", access(None, Some("u"), Some(&gone)), "gone"),
            ("natss://a/x", access(Some(&secret), None, None), "no certificate"),
            ("natss://a/x", access(Some(folder.path()), None, None), "no file"),
        ] {
            let refused = access.read(&address.parse().unwrap()).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        let read = access(None, Some("u"), Some(&secret)).read(&"nats://127.0.0.1/x".parse().unwrap()).unwrap();
        assert_eq!(read.user.as_ref().map(|user| user.password.as_str()), Some("geheim"));
        assert!(!format!("{read:?}").contains("geheim"));
    }
}
