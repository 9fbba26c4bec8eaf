//! The Redis protocol on a tenant's tables.

use std::sync::Arc;

use super::{Context, Entrance, Identity, InvocationAnswer, Next};

/// What one connection has said so far.
pub(crate) struct Session {
    entrance: Arc<Entrance>,
    identity: Option<Identity>,
}

impl Session {
    /// A connection to a port that is for this.
    pub(crate) fn new(entrance: &Arc<Entrance>) -> Session {
        Session { entrance: Arc::clone(entrance), identity: None }
    }

    /// Whom it acts for.
    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// See [`super::Conversation::run`].
    pub(crate) fn run(&mut self, context: &Context<'_>, _input: &[u8], _out: &mut Vec<u8>) -> (usize, Next) {
        self.identity = self.identity.or_else(|| Identity::of_port(context.snapshot, &self.entrance));
        (0, Next::Close)
    }

    /// See [`super::Conversation::answered`].
    pub(crate) fn answered(&mut self, _ended: &InvocationAnswer<'_>, _out: &mut Vec<u8>) {}
}
