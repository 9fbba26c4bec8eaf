//! TLS of a port: the certificate and its key, from the operator's files or self-signed. They are read again when they
//! change, so that a new certificate needs no restart.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::ring::digest::{SHA256, digest};
use arc_swap::ArcSwap;
use data_encoding::HEXLOWER;
use parking_lot::Mutex;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, ServerConfig};

use sandstorm_server::workers::ListenerConfig;

use super::certificate_end::not_after_s;
use crate::config::{ConfigError, PortTls, ServerSettings, TlsPort, prepare_state_dir, write_private};
use crate::limits::{MADE_CERTIFICATE_YEARS, MAX_PEM_BYTES};

/// Seconds of a year, about: to compute the current year.
const YEAR_S: u64 = 31_556_952;

/// The current certificate of a port.
pub struct ServerCertificate {
    port: &'static TlsPort,
    certificate: PathBuf,
    key: PathBuf,
    made_here: bool,
    current: ArcSwap<CertifiedKey>,
    /// The stamps of the files at the last read, and the error of that read.
    seen: Mutex<(Option<[FileStamp; 2]>, Option<String>)>,
}

/// The parts of a file's metadata that change when it is replaced: device, inode, size, and its time to the nanosecond.
type FileStamp = (u64, u64, u64, i64, i64);

impl ServerCertificate {
    /// Reads the certificate and its key, or makes them at the first start; `None` without TLS.
    ///
    /// # Errors
    /// One line: a file that cannot be read, holds something else, does not fit the other, or is open to others.
    pub fn open(
        port: &'static TlsPort,
        tls: &PortTls,
        state: &Path,
    ) -> Result<Option<Arc<ServerCertificate>>, ConfigError> {
        let (certificate, key, made_here) = match tls {
            PortTls::Off => return Ok(None),
            PortTls::Files { certificate, key } => (certificate.clone(), key.clone(), false),
            PortTls::SelfSigned { names } => {
                let (certificate, key) = (state.join(port.certificate_file), state.join(port.key_file));
                if !certificate.exists() || !key.exists() {
                    generate_self_signed(port, names, &certificate, &key)?;
                }
                (certificate, key, true)
            }
        };
        let stamps = [file_stamp(&certificate), file_stamp(&key)];
        let current = ArcSwap::new(Arc::new(load_certified_key(port, &certificate, &key)?));
        let seen = Mutex::new((both_stamps(stamps), None));
        Ok(Some(Arc::new(ServerCertificate { port, certificate, key, made_here, current, seen })))
    }

    /// Reads the files again if they have changed. Returns `true` if the certificate is a new one. An error is logged
    /// once, and the old certificate stays.
    pub fn look_again(&self) -> bool {
        let mut seen = self.seen.lock();
        let stamps = both_stamps([file_stamp(&self.certificate), file_stamp(&self.key)]);
        if stamps.is_some() && stamps == seen.0 {
            return false;
        }
        match load_certified_key(self.port, &self.certificate, &self.key) {
            Ok(read) => {
                let changed = read.cert != self.current.load().cert;
                self.current.store(Arc::new(read));
                *seen = (stamps, None);
                if changed {
                    let fingerprint = self.fingerprint();
                    tracing::warn!(fingerprint, "the {} uses a new certificate now", self.port.name);
                }
                changed
            }
            Err(error) => {
                // Not noted as seen: files are replaced one after the other, and may match a moment later.
                let said = error.to_string();
                if seen.1.as_ref() != Some(&said) {
                    tracing::error!(%error, "the {} keeps its certificate", self.port.name);
                    seen.1 = Some(said);
                }
                false
            }
        }
    }

    /// `sha256:` and the digest of the certificate, as clients pin it.
    pub fn fingerprint(&self) -> String {
        let current = self.current.load();
        let certificate = current.cert.first().map_or(&[][..], |certificate| certificate.as_ref());
        format!("sha256:{}", HEXLOWER.encode(digest(&SHA256, certificate).as_ref()))
    }

    /// When the certificate ends, in seconds since 1970.
    pub(crate) fn not_after_s(&self) -> Option<i64> {
        not_after_s(self.current.load().cert.first()?)
    }

    /// The certificate's file.
    pub fn file(&self) -> &Path {
        &self.certificate
    }

    /// Whether it is self-signed, so that no authority has signed it.
    pub fn made_here(&self) -> bool {
        self.made_here
    }

    /// The acceptor for TLS connections.
    ///
    /// # Errors
    /// When the library refuses its own defaults.
    pub(crate) fn acceptor(self: &Arc<ServerCertificate>) -> Result<TlsAcceptor, rustls::Error> {
        let mut config = self.config()?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

impl ServerCertificate {
    /// TLS 1.2 and 1.3 with the current certificate.
    fn config(self: &Arc<ServerCertificate>) -> Result<ServerConfig, rustls::Error> {
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        Ok(builder.with_no_client_auth().with_cert_resolver(self.clone()))
    }

    /// TLS of ports that workers serve. A returning client needs no full handshake: the state for that is in the
    /// client's ticket, and none of it is stored here.
    ///
    /// # Errors
    /// When the library refuses its own defaults.
    pub fn worker_tls_config(self: &Arc<ServerCertificate>) -> Result<Arc<ServerConfig>, rustls::Error> {
        let mut config = self.config()?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = ring::Ticketer::new()?;
        config.send_tls13_tickets = 1;
        Ok(Arc::new(config))
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

impl std::fmt::Debug for ServerCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn file_stamp(path: &Path) -> Option<FileStamp> {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}

fn both_stamps(stamps: [Option<FileStamp>; 2]) -> Option<[FileStamp; 2]> {
    let [Some(certificate), Some(key)] = stamps else { return None };
    Some([certificate, key])
}

/// Reads a certificate chain and its key, and checks that they match.
fn load_certified_key(port: &TlsPort, certificate: &Path, key: &Path) -> Result<CertifiedKey, ConfigError> {
    let bad = |path: &Path, what: &dyn std::fmt::Display| {
        ConfigError::new(format!("{}: {}: {what}", port.section, path.display()))
    };
    let chain = CertificateDer::pem_slice_iter(&read_pem(port, certificate)?).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| bad(certificate, &format!("no certificate in PEM: {error}")))?;
    if chain.is_empty() {
        return Err(bad(certificate, &"holds no certificate; it has to begin with -----BEGIN CERTIFICATE-----"));
    }
    let mode = fs::metadata(key).map_err(|error| bad(key, &error))?.permissions().mode() & 0o777;
    // The key may be readable by its group: services get keys as root's, group `ssl-cert`, mode 640.
    if mode & 0o027 != 0 {
        let could = if mode & 0o007 == 0 { "its group could replace" } else { "others could read" };
        let shown = key.display();
        let what = format!(
            "has mode {mode:o}: {could} the key; run: chmod 600 {shown} (or 640, for a group that may read it)"
        );
        return Err(bad(key, &what));
    }
    let private = PrivateKeyDer::from_pem_slice(&read_pem(port, key)?)
        .map_err(|error| bad(key, &format!("holds no private key in PEM: {error}")))?;
    CertifiedKey::from_der(chain, private, &provider()).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => bad(key, &format!("is not the key of {}", certificate.display())),
        other => bad(certificate, &format!("cannot be used: {other}")),
    })
}

fn read_pem(port: &TlsPort, path: &Path) -> Result<Vec<u8>, ConfigError> {
    let unreadable = |what: &dyn std::fmt::Display| {
        ConfigError::new(format!("{}: cannot read {}: {what}", port.section, path.display()))
    };
    let size = fs::metadata(path).map_err(|error| unreadable(&error))?.len();
    if size > MAX_PEM_BYTES {
        return Err(unreadable(&format!("it has {size} bytes, more than {MAX_PEM_BYTES}")));
    }
    fs::read(path).map_err(|error| unreadable(&error))
}

/// Makes a key and a self-signed certificate.
fn generate_self_signed(port: &TlsPort, names: &[String], certificate: &Path, key: &Path) -> Result<(), ConfigError> {
    let section = port.section;
    let failed = |error: rcgen::Error| ConfigError::new(format!("{section}: cannot make a certificate: {error}"));
    let mut all: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    all.extend(names.iter().filter(|name| !["localhost", "127.0.0.1", "::1"].contains(&name.as_str())).cloned());
    if let Some(wrong) = all.iter().find(|name| ServerName::try_from(name.as_str()).is_err()) {
        return Err(ConfigError::new(format!("{section}: {wrong:?} is neither a host's name nor an address")));
    }
    let mut params = CertificateParams::new(all).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("sandstorm {}", port.name));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    let year = i32::try_from(1970 + since / YEAR_S).unwrap_or(i32::MAX);
    // From a year ago: clients' clocks need not agree with this one.
    params.not_before = rcgen::date_time_ymd(year - 1, 1, 1);
    params.not_after = rcgen::date_time_ymd(year + MADE_CERTIFICATE_YEARS, 1, 1);
    let pair = KeyPair::generate().map_err(failed)?;
    let made = params.self_signed(&pair).map_err(failed)?;
    // The key is first: a certificate without its key would be a reason to replace both, and would break clients' pins.
    write_private(key, pair.serialize_pem().as_bytes())?;
    write_private(certificate, made.pem().as_bytes())
}

impl ServerCertificate {
    /// The certificate of the ports for memcached and Redis clients, if one of them uses TLS. A self-signed one is
    /// stored, so the state directory is needed for it.
    ///
    /// # Errors
    /// A certificate or key that cannot be used; a state directory that cannot be written.
    pub fn of_ports(config: &ServerSettings) -> Result<Option<Arc<ServerCertificate>>, ConfigError> {
        if !config.listen.iter().any(ListenerConfig::is_tls) {
            return Ok(None);
        }
        prepare_state_dir(&config.state)?;
        let (port, tls) = config.protocol_tls();
        ServerCertificate::open(port, tls, &config.state)
    }
}
