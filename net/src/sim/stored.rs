//! Values that the server's answers end with, where they are stored.

use super::sealed::Out;
use crate::r2p2::{Peer, ServerEndpoint};
use crate::share::Share;
use std::sync::Arc;

/// Bytes of an answer before its value: the message's header and the operation's.
const BEFORE: usize = 64;

/// All values that were shared.
#[derive(Default)]
pub(super) struct Stored(Vec<Arc<Vec<u8>>>);

impl Stored {
    /// Answers with a value that is not copied.
    pub(super) fn respond(
        &mut self,
        server: &mut ServerEndpoint,
        (now_us, peer, request_id): (u64, Peer, u16),
        mut message: Vec<u8>,
        out: &mut Out<'_>,
    ) {
        let value = Arc::new(message.split_off(BEFORE.min(message.len())));
        self.0.push(Arc::clone(&value));
        server.respond_shared(now_us, peer, request_id, (&message, Share::of(value)), out);
    }

    /// Values that are still held for answers.
    pub(super) fn held(&self) -> usize {
        self.0.iter().filter(|value| Arc::strong_count(value) > 1).count()
    }
}
