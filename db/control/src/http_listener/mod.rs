//! The gate of the ports that speak HTTP, the control port and a builder's service: TLS with a certificate that can be
//! replaced while it runs, a bound on connections and on how long each may keep its place, bodies that come after their
//! answer could have gone, and what becomes of those who try tokens that are nobody's.

mod certificate;
mod certificate_watcher;
mod connection_limit;
mod early_response;
mod listener;
mod tls_stream;

pub use certificate::ServerCertificate;
pub use certificate_watcher::CertificateWatcher;
pub(crate) use connection_limit::ConnectionLimiter;
pub(crate) use early_response::{BodyReadError, BodyRemainder, buffer_short_body, close_after_response};
pub(crate) use listener::{HttpPeer, LimitedListener};
