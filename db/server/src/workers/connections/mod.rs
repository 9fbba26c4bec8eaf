//! A worker's connections, in the worker's own loop: accept, hand over to the home worker, receive, run, answer.
//!
//! In a turn each connection that has something to say is read once, into a buffer that all share; what it asks for is
//! run from there and answered in one send. Only an incomplete request, or an answer that does not leave at once, is
//! copied into buffers of the connection, so an idle one has none. Start with [`event_loop`], then [`requests`].

mod accept;
mod answered;
pub(super) mod budget;
pub(super) mod connection;
pub(super) mod connection_id;
mod event_loop;
pub(super) mod forwarded;
mod forwarded_datagrams;
mod handshake_queue;
mod handshakes;
mod home_changes;
pub(super) mod inbox;
mod leaving_connections;
mod pending_output;
mod permit;
mod ready_queue;
mod records;
mod release;
mod requests;
mod slots;
pub(super) mod stream_port;
mod transport;
pub(super) mod udp_port;
mod uncertain;
pub(super) mod worker_connections;
