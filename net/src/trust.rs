//! Certificates that a port that speaks HTTPS may have, and the messages about one that is not trusted. For clients of
//! a control port, and for servers that use a builder.

use std::fmt;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data_encoding::HEXLOWER_PERMISSIVE;
use ring::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use ureq::config::Config;
use ureq::http::Uri;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, DefaultConnector, Either, LazyBuffers, NextTimeout, TcpConnector, Transport,
    TransportAdapter,
};

/// The certificate that is trusted. It is not used without TLS.
#[derive(Clone, Debug, Default)]
pub enum Trust {
    /// A certificate that the public authorities vouch for.
    #[default]
    Public,
    /// A certificate that these vouch for, or one of them itself.
    Authorities(Vec<Certificate<'static>>),
    /// The certificate with this SHA-256 digest, with any names and dates.
    Pinned([u8; 32]),
}

impl Trust {
    /// Trust in the certificates of a PEM file.
    ///
    /// # Errors
    /// [`CertificateFileError`]: it cannot be read, or holds none.
    pub fn in_file(path: &Path) -> Result<Trust, CertificateFileError> {
        let bad = |reason: String| CertificateFileError { path: path.to_owned(), reason };
        let pem = std::fs::read(path).map_err(|error| bad(format!("cannot be read: {error}")))?;
        let mut certificates = Vec::new();
        for item in parse_pem(&pem) {
            match item.map_err(|error| bad(format!("is no PEM: {error}")))? {
                PemItem::Certificate(certificate) => certificates.push(certificate),
                _ => continue,
            }
        }
        if certificates.is_empty() {
            return Err(bad("holds no certificate".to_owned()));
        }
        Ok(Trust::Authorities(certificates))
    }

    /// Trust in the one certificate of that fingerprint: `sha256:` and 64 hexadecimal digits; colons between the bytes
    /// do not matter. `None` if it is anything else.
    pub fn pin(fingerprint: &str) -> Option<Trust> {
        let (name, digits) = fingerprint.trim().split_once(':')?;
        let digits = digits.replace(':', "");
        let pinned = HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok()?.try_into().ok()?;
        name.eq_ignore_ascii_case("sha256").then_some(Trust::Pinned(pinned))
    }

    /// An agent that believes so.
    pub fn agent(&self, config: ureq::config::ConfigBuilder<ureq::typestate::AgentScope>) -> ureq::Agent {
        let roots = match self {
            Trust::Pinned(pinned) => {
                let connector = ().chain(TcpConnector::default()).chain(PinnedConnector { pinned: *pinned });
                return ureq::Agent::with_parts(config.build(), connector, AddressResolver::default());
            }
            Trust::Public => RootCerts::WebPki,
            Trust::Authorities(certificates) => RootCerts::Specific(Arc::new(certificates.clone())),
        };
        let config = config.tls_config(TlsConfig::builder().root_certs(roots).build()).build();
        ureq::Agent::with_parts(config, DefaultConnector::new(), AddressResolver::default())
    }
}

/// Finds the addresses of names as ureq does, and takes addresses as they are. ureq would start a thread for each
/// request with a timeout, also for one to an address over a connection that is there.
#[derive(Debug, Default)]
struct AddressResolver(DefaultResolver);

impl Resolver for AddressResolver {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let named = uri.scheme().zip(uri.authority());
        let host_and_port = named.and_then(|(scheme, host)| DefaultResolver::host_and_port(scheme, host));
        match host_and_port.and_then(|text| text.parse().ok()) {
            Some(address) => {
                let mut found = self.empty();
                found.push(address);
                Ok(found)
            }
            None => self.0.resolve(uri, config, timeout),
        }
    }
}

/// A file that should hold certificates, and does not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {reason}; give a file with certificates in PEM (-----BEGIN CERTIFICATE-----)", path.display())]
pub struct CertificateFileError {
    path: PathBuf,
    reason: String,
}

/// The TLS error in an error of the agent's, if there is one.
fn tls_error(error: &ureq::Error) -> Option<&rustls::Error> {
    match error {
        ureq::Error::Rustls(error) => Some(error),
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref(),
        _ => None,
    }
}

/// Advice to people about a port that is not trusted: each port's settings have names of their own.
#[derive(Debug)]
pub struct TlsHints {
    /// For a certificate without a trusted issuer.
    pub known: &'static str,
    /// For an expired certificate.
    pub expired: &'static str,
    /// For a certificate for another name.
    pub name: &'static str,
    /// For a certificate that is not the pinned one.
    pub pinned: &'static str,
    /// For a port without TLS.
    pub plain: &'static str,
    /// For anything else.
    pub other: &'static str,
}

/// The reason why a port is not trusted, and advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFailure {
    /// A description of the failure.
    pub reason: String,
    /// Advice.
    pub hint: &'static str,
}

/// Describes the fault in a port's TLS; `None` for any other error.
pub fn explain_tls_error(error: &ureq::Error, words: &TlsHints) -> Option<TlsFailure> {
    let (reason, hint) = match tls_error(error)? {
        rustls::Error::InvalidCertificate(what) => match what {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                ("no trusted authority has signed its certificate".to_owned(), words.known)
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                ("its certificate has expired".to_owned(), words.expired)
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                ("its certificate is not valid yet".to_owned(), "compare the clocks of both machines")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                ("its certificate is for another name".to_owned(), words.name)
            }
            CertificateError::ApplicationVerificationFailure => {
                ("its certificate is not the one that is pinned".to_owned(), words.pinned)
            }
            other => (format!("its certificate cannot be used: {other:?}"), words.known),
        },
        rustls::Error::InvalidMessage(_) => ("it does not speak TLS".to_owned(), words.plain),
        other => (format!("TLS failed: {other}"), words.other),
    };
    Some(TlsFailure { reason, hint })
}

/// The configuration of a client that believes one certificate and no other.
fn pinned_config(pinned: [u8; 32]) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(provider::default_provider());
    let verifier = Arc::new(PinnedCertVerifier { pinned, provider: provider.clone() });
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// A connection with TLS whose other end has shown the pinned certificate.
pub type PinnedStream<Socket> = StreamOwned<ClientConnection, Socket>;

impl Trust {
    /// TLS over a connection to a host, if this is trust in a pinned certificate; the handshake is done when it ends.
    ///
    /// # Errors
    /// The handshake has failed, or the trust is of another kind: such connections are made by [`Trust::agent`].
    pub fn pinned_stream<Socket: Read + Write>(
        &self,
        host: &str,
        mut socket: Socket,
    ) -> std::io::Result<PinnedStream<Socket>> {
        let Trust::Pinned(pinned) = self else {
            return Err(std::io::Error::other("no certificate is pinned"));
        };
        let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(name).map_err(std::io::Error::other)?;
        let config = pinned_config(*pinned).map_err(std::io::Error::other)?;
        let mut connection = ClientConnection::new(Arc::new(config), name).map_err(std::io::Error::other)?;
        connection.complete_io(&mut socket)?;
        if connection.is_handshaking() {
            // A read that brought nothing in time ends it without an error.
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        Ok(StreamOwned { conn: connection, sock: socket })
    }
}

/// TLS with one certificate and no other.
#[derive(Debug)]
struct PinnedConnector {
    pinned: [u8; 32],
}

impl<In: Transport> Connector<In> for PinnedConnector {
    type Out = Either<In, PinnedTransport>;

    fn connect(&self, details: &ConnectionDetails, chained: Option<In>) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(transport) = chained else { return Ok(None) };
        if !details.needs_tls() || transport.is_tls() {
            return Ok(Some(Either::A(transport)));
        }
        let host = details.uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(|_| ureq::Error::Tls("the host is no name"))?;
        let mut connection = ClientConnection::new(Arc::new(pinned_config(self.pinned)?), name)?;
        let mut socket = TransportAdapter::new(transport.boxed(), details.current_time.clone());
        socket.set_timeout(details.timeout);
        connection.complete_io(&mut socket)?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Either::B(PinnedTransport { buffers, stream: StreamOwned { conn: connection, sock: socket } })))
    }
}

struct PinnedTransport {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl Transport for PinnedTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let output = &self.buffers.output()[..amount];
        Ok(self.stream.write_all(output)?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let amount = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}

impl fmt::Debug for PinnedTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PinnedTransport")
    }
}

/// Accepts the certificate with that digest. As always, it is verified that the server holds its key.
#[derive(Debug)]
struct PinnedCertVerifier {
    pinned: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedCertVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if digest(&SHA256, end_entity).as_ref() == self.pinned {
            return Ok(ServerCertVerified::assertion());
        }
        Err(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ureq::unversioned::transport::time::Duration;

    #[test]
    fn addresses_are_taken_as_they_are() {
        let timeout = NextTimeout { after: Duration::from_secs(60), ..NextTimeout::default() };
        let resolver = AddressResolver::default();
        let found = |text: &str| {
            let uri: Uri = text.parse().expect("an address");
            let found = resolver.resolve(&uri, &Config::default(), timeout).expect("an address");
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(found("http://127.0.0.1:7/v1"), ["127.0.0.1:7"]);
        assert_eq!(found("https://[::1]/v1"), ["[::1]:443"]);
        assert!(found("http://localhost:7/").iter().all(|address| address.ends_with(":7")));
    }
}
