//! A builder as a service of its own host: `sandstorm builder serve`. Servers send sources, it sends back artifacts that
//! it has signed. Tenants of all its servers take turns.

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
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::admin::MAX_PUSHES;
use crate::config::{BUILDER_PORT, ConfigError, PortTls};
use crate::gate::{Door, Identity, Limited, Peer, Renewal, Rest, Unread, end_connection, read_short};
use sandstorm_accounts::token;
use sandstorm_builder::frames::{Answer, Hello, JSON_BYTES, Request, read_frame, write_frame};
use sandstorm_builder::limits::SERVICE_WAITING;
use sandstorm_builder::{BuildError, BuilderConfig, BuilderHandle, PublicKey, Queue, prepare_folder, token_file};

/// Why the service does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The builder.
    #[error(transparent)]
    Builder(#[from] BuildError),
    /// The token's file.
    #[error("{0}")]
    Token(String),
    /// The certificate.
    #[error(transparent)]
    Tls(#[from] ConfigError),
    /// The address.
    #[error("cannot serve {0}: {1}")]
    Address(SocketAddr, io::Error),
}

/// A builder that serves other hosts' servers; stops when dropped.
pub struct BuilderServer {
    listener: std::net::TcpListener,
    address: SocketAddr,
    service: Arc<Service>,
    renewal: Option<Renewal>,
}

/// Has a service look at once whether its certificate's files have changed.
#[derive(Clone)]
pub struct LookAgain(Option<Arc<Identity>>);

impl LookAgain {
    /// Looks.
    pub fn look(&self) {
        if let Some(identity) = &self.0 {
            identity.look_again();
        }
    }
}

struct Service {
    builder: Arc<BuilderHandle>,
    queue: Queue,
    /// SHA-256 of the token.
    token: [u8; 32],
    door: Arc<Door>,
}

impl BuilderServer {
    /// Starts the builder and binds the address; [`BuilderServer::run`] serves it, with TLS if there is any.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn bind(address: SocketAddr, config: BuilderConfig, tls: &PortTls) -> Result<BuilderServer, ServeError> {
        prepare_folder(&config.state)?;
        let identity = Identity::open(&BUILDER_PORT, tls, &config.state)?;
        let slots = config.compilers;
        let state = config.state.clone();
        let builder = BuilderHandle::start(config)?;
        let token = token_file::open(&state, token::generate).map_err(ServeError::Token)?;
        let failed = |error| ServeError::Address(address, error);
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let token = Sha256::digest(token.as_bytes()).into();
        let service =
            Arc::new(Service { builder, queue: Queue::new(slots, MAX_PUSHES), token, door: Door::new("builder") });
        let renewal = identity.map(|identity| Renewal::start(identity, |_| ())).transpose().map_err(failed)?;
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
    pub fn identity(&self) -> Option<&Arc<Identity>> {
        self.renewal.as_ref().map(Renewal::identity)
    }

    /// What has it look at the certificate's files while it runs.
    pub fn look_again(&self) -> LookAgain {
        LookAgain(self.identity().cloned())
    }

    /// The key that servers must trust.
    pub fn public_key(&self) -> PublicKey {
        self.service.builder.public_key()
    }

    /// Serves until `stop` is done.
    ///
    /// # Errors
    /// The system's.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
        let tls = self.identity().map(Identity::acceptor).transpose().map_err(io::Error::other)?;
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let listener = Limited::new(listener, self.service.door.clone(), tls);
        let router = Router::new()
            .route("/v1/hello", get(hello))
            .route("/v1/build", post(build).layer(DefaultBodyLimit::max(JSON_BYTES)))
            .with_state(self.service.clone())
            .layer(middleware::from_fn(keep_whole));
        let router = router.into_make_service_with_connect_info::<Peer>();
        axum::serve(listener, router).with_graceful_shutdown(stop).await
    }
}

impl Service {
    /// Whether the request carries the token; compared in constant time.
    fn authorised(&self, headers: &HeaderMap) -> bool {
        let value = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        let presented = value.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
        let presented: [u8; 32] = Sha256::digest(presented).into();
        presented.ct_eq(&self.token).into()
    }
}

/// A request that carries the token. Taken before its body is read.
struct Authorised;

impl FromRequestParts<Arc<Service>> for Authorised {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Result<Authorised, StatusCode> {
        if service.authorised(&parts.headers) {
            if let Some(ConnectInfo(Peer(_, visit))) = parts.extensions.get() {
                visit.serve(true);
            }
            return Ok(Authorised);
        }
        if let Some(ConnectInfo(Peer(peer, _))) = parts.extensions.get() {
            tokio::time::sleep(service.door.failed(peer.ip())).await;
        }
        Err(StatusCode::UNAUTHORIZED)
    }
}

fn frame<T: serde::Serialize>(answer: &Result<T, BuildError>, blob: &[u8]) -> Response {
    let mut body = Vec::new();
    match write_frame(&mut body, answer, blob) {
        Ok(()) => ([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Answers what is refused before its body has come so that the connection's next request does not meet a closed one.
async fn keep_whole(request: HttpRequest, next: Next) -> Response {
    let (mut response, rest) = match read_short(request).await {
        Ok((request, rest)) => (next.run(request).await, rest),
        Err(Unread::Late) => (StatusCode::REQUEST_TIMEOUT.into_response(), Rest::Something),
        Err(Unread::Broken(_)) => (StatusCode::BAD_REQUEST.into_response(), Rest::Something),
    };
    if rest == Rest::Something {
        end_connection(&mut response);
    }
    response
}

async fn hello(State(service): State<Arc<Service>>, _: Authorised) -> Response {
    let builder = &service.builder;
    let (public_key, compiler) = (builder.public_key().to_hex(), builder.compiler());
    let (release, confinement) = (builder.release().to_owned(), builder.confinement().to_owned());
    frame(&Ok(Hello { public_key, compiler, release, confinement }), &[])
}

async fn build(State(service): State<Arc<Service>>, _: Authorised, body: Bytes) -> Response {
    let Ok(Some((request, _))) = read_frame::<Request>(&mut &body[..]) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    drop(body);
    let Ok(place) = service.queue.enter(request.tenant, SERVICE_WAITING) else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let Ok(turn) = place.turn().await else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    let built = tokio::task::spawn_blocking(move || {
        let _held = turn;
        service.builder.build_with_warnings(request.tenant, request.version, &request.source)
    });
    match built.await {
        Ok(Ok((artifact, warnings))) => frame(&Ok(Answer { warnings }), &artifact.encode()),
        Ok(Err(error)) => frame::<Answer>(&Err(error), &[]),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
