//! What is noted of few calls, for somebody who asks at their end.

use sandstorm_accounts::CodePlace;
use sandstorm_store::AccessedKey;

/// What is noted of a call; nothing of most.
#[derive(Debug, Default)]
pub(super) struct CallNotes {
    /// The key that it read first of a watched table, and the table's id.
    pub(super) watched: Option<(u64, AccessedKey)>,
    /// Where its code was when the server ended it.
    pub(super) places: Vec<CodePlace>,
}

impl CallNotes {
    #[inline]
    pub(super) fn clear(&mut self) {
        self.watched = None;
        self.places.clear();
    }
}
