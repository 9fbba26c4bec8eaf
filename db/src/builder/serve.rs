//! A builder as a service of its own host: `sandstorm builder serve`. Servers send sources, it sends back artifacts that
//! it has signed. Tenants of all its servers take turns.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::frames::{Answer, Hello, JSON_BYTES, Request, read_frame, write_frame};
use super::limits::SERVICE_WAITING;
use super::{BuildError, BuilderConfig, BuilderHandle, PublicKey, Queue, token_file};
use crate::admin::MAX_PUSHES;

/// Why the service does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The builder.
    #[error(transparent)]
    Builder(#[from] BuildError),
    /// The token's file.
    #[error("{0}")]
    Token(String),
    /// The address.
    #[error("cannot serve {0}: {1}")]
    Address(SocketAddr, io::Error),
}

/// A builder that serves other hosts' servers; stops when dropped.
pub struct BuilderServer {
    listener: std::net::TcpListener,
    address: SocketAddr,
    service: Arc<Service>,
}

struct Service {
    builder: Arc<BuilderHandle>,
    queue: Queue,
    /// SHA-256 of the token.
    token: [u8; 32],
}

impl BuilderServer {
    /// Starts the builder and binds the address; [`BuilderServer::run`] serves it.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn bind(address: SocketAddr, config: BuilderConfig) -> Result<BuilderServer, ServeError> {
        let slots = config.compilers;
        let state = config.state.clone();
        let builder = BuilderHandle::start(config)?;
        let token = token_file::open(&state).map_err(ServeError::Token)?;
        let failed = |error| ServeError::Address(address, error);
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let token = Sha256::digest(token.as_bytes()).into();
        let service = Arc::new(Service { builder, queue: Queue::new(slots, MAX_PUSHES), token });
        Ok(BuilderServer { listener, address: bound, service })
    }

    /// The address that is bound.
    pub fn address(&self) -> SocketAddr {
        self.address
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
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let listener = crate::admin::bounded(listener);
        let router = Router::new()
            .route("/v1/hello", get(hello))
            .route("/v1/build", post(build).layer(DefaultBodyLimit::max(JSON_BYTES)))
            .with_state(self.service);
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
        if service.authorised(&parts.headers) { Ok(Authorised) } else { Err(StatusCode::UNAUTHORIZED) }
    }
}

fn frame<T: serde::Serialize>(answer: &Result<T, BuildError>, blob: &[u8]) -> Response {
    let mut body = Vec::new();
    match write_frame(&mut body, answer, blob) {
        Ok(()) => ([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
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
