//! A port that accepts connections.

use std::sync::Arc;

use sandstorm_dialects::PortService;
use sandstorm_net::driver::StreamListener;
use tokio_rustls::rustls::ServerConfig;

/// A port that accepts connections.
pub(in crate::workers) struct StreamPort {
    pub(in crate::workers) listener: StreamListener,
    pub(in crate::workers) service: Arc<PortService>,
    /// TLS, if it is used there.
    pub(in crate::workers) tls: Option<Arc<ServerConfig>>,
}
