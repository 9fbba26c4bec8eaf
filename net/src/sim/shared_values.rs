//! Values that the server's answers end with, where they are stored.

use super::sealed::SimServerSink;
use crate::r2p2::{PeerAddr, ServerEndpoint};
use crate::shared_bytes::SharedBytes;
use std::sync::Arc;

/// Bytes of an answer before its value: the message's header and the operation's.
const HEADERS_LEN: usize = 64;

/// All values that were shared.
#[derive(Default)]
pub(super) struct SharedValues(Vec<Arc<Vec<u8>>>);

impl SharedValues {
    /// Answers with a value that is not copied.
    pub(super) fn respond(
        &mut self,
        server: &mut ServerEndpoint,
        (now_us, peer, request_id): (u64, PeerAddr, u16),
        mut message: Vec<u8>,
        out: &mut SimServerSink<'_>,
    ) {
        let value = Arc::new(message.split_off(HEADERS_LEN.min(message.len())));
        self.0.push(Arc::clone(&value));
        server.respond_shared(now_us, peer, request_id, (&message, SharedBytes::of(value)), out);
    }

    /// Values that are still held for answers.
    pub(super) fn held(&self) -> usize {
        self.0.iter().filter(|value| Arc::strong_count(value) > 1).count()
    }
}
