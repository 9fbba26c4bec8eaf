//! Who may reach what: the control port with and without TLS, open tenants, and which addresses are this machine's own.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{ConfigError, TenantSettings};

/// How the control port is protected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ControlTls {
    /// Plain HTTP: on loopback, or where the operator has named it.
    #[default]
    Off,
    /// A certificate of the operator's own.
    Files {
        /// The certificate and those between it and its root, PEM, the server's own first.
        certificate: PathBuf,
        /// Its key, PEM.
        key: PathBuf,
    },
    /// A certificate that is made at the first start and kept in the state directory.
    SelfSigned {
        /// Names and addresses that it is valid for, beside `localhost` and the addresses of loopback.
        names: Vec<String>,
    },
}

/// `[control_tls]`, as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FileControlTls {
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    self_signed: Option<bool>,
    names: Vec<String>,
}

/// What the command line says about it.
#[derive(Clone, Debug, Default)]
pub struct TlsOverrides {
    /// See [`ControlTls::Files`].
    pub certificate: Option<PathBuf>,
    /// See [`ControlTls::Files`].
    pub key: Option<PathBuf>,
    /// Whether a certificate is made.
    pub self_signed: bool,
    /// See [`ControlTls::SelfSigned`].
    pub names: Vec<String>,
}

impl ControlTls {
    /// The file's section with the command line over it. `control` is the port's address: a certificate that is made is
    /// valid for it.
    pub(super) fn build(
        file: FileControlTls,
        over: &TlsOverrides,
        control: SocketAddr,
    ) -> Result<ControlTls, ConfigError> {
        let named = over.certificate.is_some() || over.key.is_some();
        // A certificate on the command line replaces all that the file says, and so does --tls.
        let (certificate, key) = match (named, over.self_signed) {
            (true, true) => return Err(both()),
            (true, false) => (over.certificate.clone(), over.key.clone()),
            (false, true) => (None, None),
            (false, false) => (file.certificate, file.key),
        };
        let self_signed = over.self_signed || (!named && file.self_signed == Some(true));
        match (certificate, key, self_signed) {
            (Some(_), _, true) | (_, Some(_), true) => Err(both()),
            (Some(certificate), Some(key), false) => Ok(ControlTls::Files { certificate, key }),
            (None, None, true) => {
                let mut names = file.names;
                names.extend(over.names.iter().cloned());
                if !control.ip().is_unspecified() {
                    names.push(control.ip().to_canonical().to_string());
                }
                Ok(ControlTls::SelfSigned { names })
            }
            (None, None, false) if !file.names.is_empty() || !over.names.is_empty() => Err(ConfigError::new(
                "control_tls.names are those of a certificate that the server makes; say self_signed = true as well",
            )),
            (None, None, false) => Ok(ControlTls::Off),
            (Some(_), None, false) => Err(lonely("certificate", "key")),
            (None, Some(_), false) => Err(lonely("key", "certificate")),
        }
    }

    /// Whether there is TLS.
    pub fn is_on(&self) -> bool {
        *self != ControlTls::Off
    }
}

fn both() -> ConfigError {
    ConfigError::new("control_tls: either a certificate with its key, or self_signed, not both")
}

fn lonely(there: &str, missing: &str) -> ConfigError {
    ConfigError::new(format!(
        "control_tls.{there} is given without control_tls.{missing}; give both (--control-certificate FILE \
         --control-key FILE), or self_signed = true (--control-tls)"
    ))
}

/// Whether other machines reach a port that is bound to `ip`. An IPv4 address in IPv6's clothes is what it is inside.
pub(super) fn is_public(ip: IpAddr) -> bool {
    !ip.to_canonical().is_loopback()
}

/// Refuses a control port that other machines reach in the clear, unless that is named.
pub(super) fn check_control(control: SocketAddr, tls: &ControlTls, allow_plain: bool) -> Result<(), ConfigError> {
    if !is_public(control.ip()) || tls.is_on() || allow_plain {
        return Ok(());
    }
    Err(ConfigError::new(format!(
        "control address {control} is not on loopback: tokens would cross the network in the clear; say --control-tls \
         (or [control_tls] with certificate and key, or self_signed = true), or bind it to 127.0.0.1 and use an SSH \
         tunnel, or say --allow-plain-control if something before it speaks TLS"
    )))
}

/// A line about tokens in a configuration that others may read.
pub(super) fn warn_of_tokens(file: &Path, tenants: &[TenantSettings]) -> Option<String> {
    let named = tenants.iter().find(|tenant| tenant.token.is_some())?;
    let mode = std::fs::metadata(file).ok()?.permissions().mode() & 0o777;
    (mode & 0o077 != 0).then(|| {
        let shown = file.display();
        format!(
            "{shown} has mode {mode:o} and holds the token of tenant {:?}: others could read it; replace `token` by \
             `token_hash` (`sandstorm token hash` prints it), or run: chmod 600 {shown}",
            named.name
        )
    })
}
