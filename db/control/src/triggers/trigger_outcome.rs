//! The outcomes of changes of triggers.

/// Why a trigger is not made or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TriggerError {
    /// The definition is invalid.
    #[error("{0}")]
    Invalid(String),
    /// A trigger of that name exists.
    #[error("there is a trigger {0:?} already")]
    Exists(String),
    /// No trigger of that name exists.
    #[error("there is no trigger {0:?}")]
    Unknown(String),
    /// The limit on their number is reached.
    #[error("{0}")]
    TooMany(String),
    /// Its table has no log.
    #[error("table {0:?} has durability none: its changes are in no log")]
    NotLogged(String),
    /// The table does not exist.
    #[error("there is no table {0:?}")]
    UnknownTable(String),
    /// It is not a table's trigger.
    #[error("trigger {0:?} calls by a schedule: it has no positions")]
    NoPositions(String),
    /// The servers of the cluster cannot agree on it.
    #[error("{0}")]
    NotAgreed(String),
    /// The file cannot be written.
    #[error("{0}")]
    Unwritable(String),
}

/// The outcome for a trigger that a manifest declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeclaredTrigger {
    /// There was none of its name.
    Created,
    /// It is another one now.
    Changed,
    /// It was there as it is.
    Unchanged,
}
