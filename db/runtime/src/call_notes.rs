//! Details that are noted of few calls, for callers that ask at their end.

use sandstorm_accounts::CodePlace;
use sandstorm_store::AccessedKey;

use super::code_look::CodeLook;

/// What is noted of a call; nothing of most.
#[derive(Debug, Default)]
pub(super) struct CallNotes {
    /// The key that it read first of a watched table, and the table's id.
    pub(super) watched: Option<(u64, AccessedKey)>,
    /// Where its code was when the server ended it.
    pub(super) places: Vec<CodePlace>,
    /// Where its code is, in a poll that is made to see that.
    pub(super) look: Option<Box<CodeLook>>,
}

impl CallNotes {
    #[inline]
    pub(super) fn clear(&mut self) {
        self.watched = None;
        self.places.clear();
    }
}
