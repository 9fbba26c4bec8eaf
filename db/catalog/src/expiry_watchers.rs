//! The watchers of a table's expiries. While a table has one, the end of a record is a change in the log; other tables
//! pay nothing for it. Readers of a change feed have it set; triggers ask for as long as they are there.

use serde::{Deserialize, Serialize};

/// A kind of watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryWatcher {
    /// Readers of the table's change feed, by its setting.
    Feed,
    /// Triggers that call for it.
    Triggers,
}

/// The watchers that have asked, of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpiryWatchers {
    /// [`ExpiryWatcher::Feed`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub feed: bool,
    /// [`ExpiryWatcher::Triggers`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub triggers: bool,
}

impl ExpiryWatchers {
    /// Whether none has.
    pub(super) fn is_empty(&self) -> bool {
        *self == ExpiryWatchers::default()
    }

    pub(super) fn has(self, watcher: ExpiryWatcher) -> bool {
        match watcher {
            ExpiryWatcher::Feed => self.feed,
            ExpiryWatcher::Triggers => self.triggers,
        }
    }

    pub(super) fn with(self, watcher: ExpiryWatcher, on: bool) -> ExpiryWatchers {
        match watcher {
            ExpiryWatcher::Feed => ExpiryWatchers { feed: on, ..self },
            ExpiryWatcher::Triggers => ExpiryWatchers { triggers: on, ..self },
        }
    }
}
