//! A builder as a service of its own host: `sandstorm builder serve`. Servers send sources; it returns signed
//! artifacts. Tenants of all its servers take turns.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Request as HttpRequest, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, middleware};
use ring::digest::{Digest, SHA256, digest};
use subtle::ConstantTimeEq;

use crate::admin::MAX_PUSHES;
use crate::config::{BUILDER_PORT, ConfigError, PortTls};
use crate::http_listener::{
    BodyReadError, BodyRemainder, CertificateWatcher, ConnectionLimiter, HttpPeer, LimitedListener, ServerCertificate,
    buffer_short_body, close_after_response,
};
use sandstorm_accounts::token;
use sandstorm_builder::limits::MAX_SERVICE_WAITING;
use sandstorm_builder::protocol::{BuildReply, BuildRequest, BuilderHello, MAX_JSON_BYTES, read_frame, write_frame};
use sandstorm_builder::{BuildError, BuildQueue, BuilderConfig, BuilderHandle, PublicKey, prepare_folder, token_file};

/// The reason that the service does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The builder did not start.
    #[error(transparent)]
    Builder(#[from] BuildError),
    /// The token's file cannot be used.
    #[error("{0}")]
    Token(String),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] ConfigError),
    /// The address cannot be bound.
    #[error("cannot serve {0}: {1}")]
    Address(SocketAddr, io::Error),
}

/// A builder that serves other hosts' servers; stops when dropped.
pub struct BuilderServer {
    listener: std::net::TcpListener,
    address: SocketAddr,
    service: Arc<BuilderService>,
    renewal: Option<CertificateWatcher>,
}

/// Makes a service check at once whether its certificate's files have changed.
#[derive(Clone)]
pub struct CertificateReloader(Option<Arc<ServerCertificate>>);

impl CertificateReloader {
    /// Checks the files.
    pub fn look(&self) {
        if let Some(identity) = &self.0 {
            identity.look_again();
        }
    }
}

struct BuilderService {
    builder: Arc<BuilderHandle>,
    queue: BuildQueue,
    /// SHA-256 of the token.
    token: Digest,
    limiter: Arc<ConnectionLimiter>,
}

impl BuilderServer {
    /// Starts the builder and binds the address. [`BuilderServer::run`] serves it, with TLS if `tls` has it.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn bind(address: SocketAddr, config: BuilderConfig, tls: &PortTls) -> Result<BuilderServer, ServeError> {
        prepare_folder(&config.state)?;
        let identity = ServerCertificate::open(&BUILDER_PORT, tls, &config.state)?;
        let slots = config.compilers;
        let state = config.state.clone();
        let builder = BuilderHandle::start(config)?;
        let token = token_file::open(&state, token::generate).map_err(ServeError::Token)?;
        let failed = |error| ServeError::Address(address, error);
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let token = digest(&SHA256, token.as_bytes());
        let service = Arc::new(BuilderService {
            builder,
            queue: BuildQueue::new(slots, MAX_PUSHES),
            token,
            limiter: ConnectionLimiter::new("builder"),
        });
        let renewal =
            identity.map(|identity| CertificateWatcher::start(identity, |_| ())).transpose().map_err(failed)?;
        Ok(BuilderServer { listener, address: bound, service, renewal })
    }

    /// The address that is bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address as a server's configuration writes it.
    pub fn url(&self) -> String {
        let scheme = if self.renewal.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The certificate that it shows; `None` without TLS.
    pub fn identity(&self) -> Option<&Arc<ServerCertificate>> {
        self.renewal.as_ref().map(CertificateWatcher::identity)
    }

    /// A handle that makes it check the certificate's files while it runs.
    pub fn look_again(&self) -> CertificateReloader {
        CertificateReloader(self.identity().cloned())
    }

    /// The key that servers must trust.
    pub fn public_key(&self) -> PublicKey {
        self.service.builder.public_key()
    }

    /// Serves until `stop` is done.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
        let tls = self.identity().map(ServerCertificate::acceptor).transpose().map_err(io::Error::other)?;
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let listener = LimitedListener::new(listener, self.service.limiter.clone(), tls);
        let router = Router::new()
            .route("/v1/hello", get(hello))
            .route("/v1/build", post(build).layer(DefaultBodyLimit::max(MAX_JSON_BYTES)))
            .with_state(self.service.clone())
            .layer(middleware::from_fn(buffer_request_body));
        let router = router.into_make_service_with_connect_info::<HttpPeer>();
        axum::serve(listener, router).with_graceful_shutdown(stop).await
    }
}

impl BuilderService {
    /// Whether the request carries the right token. Compares in constant time.
    fn is_authorized(&self, headers: &HeaderMap) -> bool {
        let value = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        let presented = value.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
        digest(&SHA256, presented).as_ref().ct_eq(self.token.as_ref()).into()
    }
}

/// A request with the right token. It is extracted before the body is read.
struct AuthorizedRequest;

impl FromRequestParts<Arc<BuilderService>> for AuthorizedRequest {
    type Rejection = StatusCode;

    async fn from_request_parts(
        parts: &mut Parts,
        service: &Arc<BuilderService>,
    ) -> Result<AuthorizedRequest, StatusCode> {
        if service.is_authorized(&parts.headers) {
            if let Some(ConnectInfo(HttpPeer(_, visit))) = parts.extensions.get() {
                visit.serve(true);
            }
            return Ok(AuthorizedRequest);
        }
        if let Some(ConnectInfo(HttpPeer(peer, _))) = parts.extensions.get() {
            tokio::time::sleep(service.limiter.failed(peer.ip())).await;
        }
        Err(StatusCode::UNAUTHORIZED)
    }
}

fn framed_response<T: serde::Serialize>(answer: &Result<T, BuildError>, blob: &[u8]) -> Response {
    let mut body = Vec::new();
    match write_frame(&mut body, answer, blob) {
        Ok(()) => ([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Reads the body of a request before an early refusal, so that the connection's next request does not meet a closed
/// one.
async fn buffer_request_body(request: HttpRequest, next: Next) -> Response {
    let (mut response, rest) = match buffer_short_body(request).await {
        Ok((request, rest)) => (next.run(request).await, rest),
        Err(BodyReadError::TimedOut) => (StatusCode::REQUEST_TIMEOUT.into_response(), BodyRemainder::Pending),
        Err(BodyReadError::Malformed(_)) => (StatusCode::BAD_REQUEST.into_response(), BodyRemainder::Pending),
    };
    if rest == BodyRemainder::Pending {
        close_after_response(&mut response);
    }
    response
}

async fn hello(State(service): State<Arc<BuilderService>>, _: AuthorizedRequest) -> Response {
    let builder = &service.builder;
    let (public_key, compiler) = (builder.public_key().to_hex(), builder.compiler());
    let (release, confinement) = (builder.release().to_owned(), builder.confinement().to_owned());
    framed_response(&Ok(BuilderHello { public_key, compiler, release, confinement }), &[])
}

async fn build(State(service): State<Arc<BuilderService>>, _: AuthorizedRequest, body: Bytes) -> Response {
    let Ok(Some((request, _))) = read_frame::<BuildRequest>(&mut &body[..]) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    drop(body);
    let Ok(place) = service.queue.enter(request.tenant, MAX_SERVICE_WAITING) else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let Ok(turn) = place.turn().await else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    let built = tokio::task::spawn_blocking(move || {
        let _held = turn;
        match request.check_only {
            true => service.builder.check(&request).map(|()| (Vec::new(), Vec::new())),
            false => service.builder.answer(&request).map(|(artifact, warnings)| (artifact.encode(), warnings)),
        }
    });
    match built.await {
        Ok(Ok((blob, warnings))) => framed_response(&Ok(BuildReply { warnings }), &blob),
        Ok(Err(error)) => framed_response::<BuildReply>(&Err(error), &[]),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
