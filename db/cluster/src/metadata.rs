//! What a cluster needs of the store of its state: reads that are current, and transactions that compare revisions.

/// A value with the revision of its last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredValue {
    /// Its key, without the cluster's prefix.
    pub key: String,
    /// Its bytes.
    pub value: String,
    /// The revision of its last change; never 0.
    pub revision: u64,
}

/// A change of several keys at once, if all compared keys are as they were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetadataChange {
    /// Keys with the revisions that they must have; 0: the key must not be there.
    pub compared: Vec<(String, u64)>,
    /// Keys and their new values.
    pub put: Vec<(String, String)>,
}

/// The reason that the store gave no answer. Whether a change happened is not known then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoAnswer(pub String);

/// The store of a cluster's state.
pub trait MetadataStore {
    /// All keys that begin so, with their values, as they are at a moment between call and answer.
    ///
    /// # Errors
    /// [`NoAnswer`].
    fn list(&mut self, begins: &str) -> Result<Vec<StoredValue>, NoAnswer>;

    /// Makes a change if all comparisons hold. Returns whether it was made.
    ///
    /// # Errors
    /// [`NoAnswer`]: it was made, or not.
    fn change(&mut self, change: &MetadataChange) -> Result<bool, NoAnswer>;
}
