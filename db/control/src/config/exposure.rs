//! The exposure of ports: the control port with and without TLS, open tenants, and the addresses of this machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{ConfigError, TenantSettings};

/// A port with TLS settings: its name, its section, its options and its files.
#[derive(Debug)]
pub struct TlsPort {
    /// Its name for people.
    pub name: &'static str,
    /// Its section in the configuration.
    pub section: &'static str,
    /// The option that makes a self-signed certificate.
    pub made: &'static str,
    /// The option that adds names to such a certificate.
    pub names: &'static str,
    /// The options that name the operator's own certificate.
    pub named: &'static str,
    /// Name, in its state directory, of the self-signed certificate.
    pub certificate_file: &'static str,
    /// Name of that certificate's key.
    pub key_file: &'static str,
}

/// The control port of a server.
pub const CONTROL_PORT: TlsPort = TlsPort {
    name: "control port",
    section: "control_tls",
    made: "--control-tls",
    names: "--control-name",
    named: "--control-certificate FILE --control-key FILE",
    certificate_file: "control-certificate.pem",
    key_file: "control-key.pem",
};

/// The port of `sandstorm builder serve`.
pub const BUILDER_PORT: TlsPort = TlsPort {
    name: "builder",
    section: "builder_tls",
    made: "--tls",
    names: "--tls-name",
    named: "--tls-certificate FILE --tls-key FILE",
    certificate_file: "tls-certificate.pem",
    key_file: "tls-key.pem",
};

/// The ports for clients of memcached and Redis, which speak no HTTP but have certificates all the same.
pub const PROTOCOL_PORTS: TlsPort = TlsPort {
    name: "memcached and redis ports",
    section: "port_tls",
    made: "--port-tls",
    names: "--port-name",
    named: "--port-certificate FILE --port-key FILE",
    certificate_file: "port-certificate.pem",
    key_file: "port-key.pem",
};

/// The protection of a port that speaks HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PortTls {
    /// Plain HTTP: on loopback, or if the operator allows it.
    #[default]
    Off,
    /// A certificate of the operator's own.
    Files {
        /// The certificate chain, PEM, with the server's own certificate first.
        certificate: PathBuf,
        /// Its key, PEM.
        key: PathBuf,
    },
    /// A self-signed certificate, made at the first start and stored in the state directory.
    SelfSigned {
        /// Names and addresses that it is valid for, beside `localhost` and the addresses of loopback.
        names: Vec<String>,
    },
}

/// `[control_tls]` or `[builder_tls]`, as it is written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TlsSection {
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    self_signed: Option<bool>,
    names: Vec<String>,
}

/// The TLS options of the command line.
#[derive(Clone, Debug, Default)]
pub struct TlsOverrides {
    /// See [`PortTls::Files`].
    pub certificate: Option<PathBuf>,
    /// See [`PortTls::Files`].
    pub key: Option<PathBuf>,
    /// Whether a certificate is made.
    pub self_signed: bool,
    /// See [`PortTls::SelfSigned`].
    pub names: Vec<String>,
}

impl PortTls {
    /// The file's section with the command line's overrides. `address` is the port's; a self-signed certificate is
    /// valid for it.
    pub(super) fn build(
        port: &TlsPort,
        file: TlsSection,
        over: &TlsOverrides,
        address: SocketAddr,
    ) -> Result<PortTls, ConfigError> {
        let named = over.certificate.is_some() || over.key.is_some();
        // A certificate on the command line replaces all of the file's section, and so does --tls.
        let (certificate, key) = match (named, over.self_signed) {
            (true, true) => return Err(conflicting_sources(port)),
            (true, false) => (over.certificate.clone(), over.key.clone()),
            (false, true) => (None, None),
            (false, false) => (file.certificate, file.key),
        };
        let self_signed = over.self_signed || (!named && file.self_signed == Some(true));
        match (certificate, key, self_signed) {
            (Some(_), _, true) | (_, Some(_), true) => Err(conflicting_sources(port)),
            (Some(_), Some(_), false) if !over.names.is_empty() => Err(ConfigError::new(format!(
                "{} is for a certificate that is made here ({}); this one has its names already",
                port.names, port.made
            ))
            .at(&[format!("{}.certificate", port.section)])),
            (Some(certificate), Some(key), false) => Ok(PortTls::Files { certificate, key }),
            (None, None, true) => {
                let mut names = file.names;
                names.extend(over.names.iter().cloned());
                if !address.ip().is_unspecified() {
                    names.push(address.ip().to_canonical().to_string());
                }
                Ok(PortTls::SelfSigned { names })
            }
            (None, None, false) if !file.names.is_empty() || !over.names.is_empty() => Err(ConfigError::new(format!(
                "{}.names ({}) are those of a certificate that is made here; say self_signed = true ({}) as well",
                port.section, port.names, port.made
            ))
            .at(&[format!("{}.names", port.section)])),
            (None, None, false) => Ok(PortTls::Off),
            (Some(_), None, false) => Err(missing_counterpart(port, "certificate", "key")),
            (None, Some(_), false) => Err(missing_counterpart(port, "key", "certificate")),
        }
    }

    /// Whether there is TLS.
    pub fn is_on(&self) -> bool {
        *self != PortTls::Off
    }
}

impl TlsSection {
    /// TLS of the ports for clients of memcached and Redis. These have no single address; a self-signed certificate is
    /// valid for loopback's names in any case.
    pub(super) fn of_ports(self, over: &TlsOverrides) -> Result<PortTls, ConfigError> {
        PortTls::build(&PROTOCOL_PORTS, self, over, (Ipv4Addr::LOCALHOST, 0).into())
    }
}

fn conflicting_sources(port: &TlsPort) -> ConfigError {
    ConfigError::new(format!("{}: either a certificate with its key, or self_signed, not both", port.section)).at(&[
        "self_signed",
        "certificate",
        "key",
    ]
    .map(|key| format!("{}.{key}", port.section)))
}

fn missing_counterpart(port: &TlsPort, there: &str, missing: &str) -> ConfigError {
    let TlsPort { section, named, made, .. } = port;
    ConfigError::new(format!(
        "{section}.{there} is given without {section}.{missing}; give both ({named}), or self_signed = true ({made})"
    ))
    .at(&[format!("{section}.{there}")])
}

/// Whether other machines reach a port that is bound to `ip`. An IPv4-mapped IPv6 address counts as its IPv4 address.
pub(super) fn is_public(ip: IpAddr) -> bool {
    !ip.to_canonical().is_loopback()
}

/// Refuses a plain control port that other machines reach, unless it is allowed.
pub(super) fn check_control_exposure(control: SocketAddr, tls: &PortTls, allow_plain: bool) -> Result<(), ConfigError> {
    if !is_public(control.ip()) || tls.is_on() || allow_plain {
        return Ok(());
    }
    Err(ConfigError::new(format!(
        "control address {control} is not on loopback: tokens would cross the network in the clear; say --control-tls \
         (or [control_tls] with certificate and key, or self_signed = true), or bind it to 127.0.0.1 and use an SSH \
         tunnel, or say --allow-plain-control if something before it speaks TLS"
    )))
}

/// Refuses a plain builder's service that other machines reach, unless it is allowed.
pub(super) fn check_service_exposure(listen: SocketAddr, tls: &PortTls, allow_plain: bool) -> Result<(), ConfigError> {
    if !is_public(listen.ip()) || tls.is_on() || allow_plain {
        return Ok(());
    }
    Err(ConfigError::new(format!(
        "{listen} is reached from other machines: sources and the token would cross the network in the clear; say --tls \
         (or --tls-certificate FILE --tls-key FILE), or listen on 127.0.0.1 behind something that speaks TLS, or say \
         --allow-plain if the network is your own"
    )))
}

/// A warning about tokens in a configuration that other users may read.
pub(super) fn warn_readable_tokens(file: &Path, tenants: &[TenantSettings]) -> Option<String> {
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
