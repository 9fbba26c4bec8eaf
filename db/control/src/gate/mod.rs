//! The gate of the ports that speak HTTP, the control port and a builder's service: TLS with a certificate that can be
//! replaced while it runs, a bound on connections and on how long each may keep its place, bodies that come after their answer could
//! have gone, and what becomes of those who try tokens that are nobody's.

mod door;
mod early;
mod listen;
mod renewal;
mod stream;
mod tls;

pub(crate) use door::Door;
pub(crate) use early::{Rest, Unread, end_connection, read_short};
pub(crate) use listen::{Limited, Peer};
pub use renewal::Renewal;
pub use tls::Identity;
