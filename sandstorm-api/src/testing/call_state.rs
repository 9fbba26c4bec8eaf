//! An invocation's calls of other extensions, in a [`TestStore`](super::TestStore).

use alloc::vec::Vec;

/// An invocation's calls.
#[derive(Default)]
pub(super) struct TestCalls {
    /// Callers above it.
    pub(super) depth: u32,
    /// The transaction that its caller has handed over, and the one that it hands back.
    pub(super) inherited: Vec<u8>,
    pub(super) returned: Vec<u8>,
    /// Code, reply and notes of the call that has ended, and of the one before that was asked for.
    pub(super) ended: Option<(u32, Vec<u8>, Vec<u8>)>,
    pub(super) last: (Vec<u8>, Vec<u8>),
    /// The transaction has met the writes of others in a callee: all is to begin anew.
    pub(super) has_conflict: bool,
}

impl TestCalls {
    pub(super) fn forget(&mut self) {
        (self.ended, self.last) = (None, Default::default());
        self.returned.clear();
    }
}
