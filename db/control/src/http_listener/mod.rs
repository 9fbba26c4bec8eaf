//! The listener of the ports that speak HTTP: the control port and a builder's service. It has TLS with a certificate
//! that can be replaced at run time, limits on connections and their timeouts, early responses, and delays for wrong
//! tokens.

mod blocking_stream;
mod certificate;
mod certificate_end;
mod certificate_watcher;
mod connection_limit;
mod early_response;
mod listener;
mod sent_note;
mod tls_stream;

pub(crate) use blocking_stream::BlockingStream;
pub use certificate::ServerCertificate;
pub use certificate_watcher::CertificateWatcher;
pub(crate) use connection_limit::{ConnectionLimiter, PermitHandle, counted_address};
pub(crate) use early_response::{BodyReadError, BodyRemainder, buffer_short_body, close_after_response};
pub(crate) use listener::{HttpPeer, LimitedListener};
