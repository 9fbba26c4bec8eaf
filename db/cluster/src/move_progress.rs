//! The progress reports of moves.

/// How far a copy is, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyProgress {
    /// The move.
    pub move_id: u64,
    /// Records that were copied, those that have changed meanwhile again.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What is done now, or what it waits for.
    pub state: String,
}

/// A server that has not taken a change of the directory over yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaggingServer {
    /// Its id.
    pub id: String,
    /// Whether it has told of itself lately.
    pub lives: bool,
}
