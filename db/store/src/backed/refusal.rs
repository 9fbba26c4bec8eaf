//! Why a table with a backing refuses a change.

/// The reason why a table with a backing refuses a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackingRefusal {
    /// Too many bytes wait to be written to the backing.
    #[error(
        "as many bytes wait to be written to it as may: ask again when it has taken some, or raise the table's bound"
    )]
    DirtyFull,
    /// The backing has failed several times, and was not asked again.
    #[error("it does not answer, or refuses; it is tried again: ask again later")]
    Down,
    /// The table's policy has clients read only.
    #[error("the table's policy is read-through: write to the backing, or choose another policy")]
    ReadOnly,
    /// All records of the table would have to go.
    #[error("a table with a backing is not emptied as a whole: delete its records, or drop the table")]
    NotCleared,
}
