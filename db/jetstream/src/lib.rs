//! Copies of a log in NATS JetStream: a stream is a replica. `README.md` says why it is as it is.
//!
//! - [`nats_protocol`], [`connection`]: the words of NATS, and a connection that speaks them;
//! - [`stream_store`], [`nats_stream`]: what is needed of a stream, and one of JetStream;
//! - [`stream_message`], [`stream_replica`]: the messages, and the replica that they come to;
//! - [`staging_disk`]: where a replica is written before it is read;
//! - [`sync_check`]: whether servers sync each message.
#![forbid(unsafe_code)]

mod access;
mod access_file;
mod address;
mod broken_rules;
mod connection;
pub mod limits;
mod nats_protocol;
mod nats_stream;
#[cfg(test)]
mod server_tests;
mod staging_disk;
mod stream_message;
mod stream_replica;
mod stream_store;
mod sync_check;
#[cfg(test)]
mod tests;

pub use access::{NatsAccess, NatsEndpoint};
pub use access_file::{read_access_text, read_password};
pub use address::NatsAddress;
pub use nats_stream::NatsStream;
pub use stream_replica::{StagingFolder, StreamReplica};
pub use stream_store::{MessageVisitor, StreamBounds, StreamError, StreamStore};
pub use sync_check::MonitorsReport;
