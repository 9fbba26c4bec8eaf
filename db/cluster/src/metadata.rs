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
    /// Keys that are removed: those from the first one on, before the second one.
    pub removed: Vec<(String, String)>,
}

/// The keys that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataRange<'k> {
    /// The first one.
    pub from: &'k str,
    /// The first one that is not meant.
    pub to: &'k str,
    /// Only those whose last change has this revision, or a later one.
    pub since: u64,
    /// The revision of the moment that is meant; 0: between call and answer.
    pub at: u64,
    /// Values in an answer, at most; 0: all.
    pub most: usize,
}

impl<'k> MetadataRange<'k> {
    /// All keys from one on, before another, as they are now.
    pub fn of(from: &'k str, to: &'k str) -> MetadataRange<'k> {
        MetadataRange { from, to, since: 0, at: 0, most: 0 }
    }
}

/// The keys of a range, as they were at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedValues {
    /// In the order of their keys.
    pub values: Vec<StoredValue>,
    /// The revision of that moment.
    pub revision: u64,
    /// Whether there are more than were asked for.
    pub has_more: bool,
}

/// The reason that the store gave no answer. Whether a change happened is not known then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoAnswer(pub String);

/// The store of a cluster's state.
pub trait MetadataStore {
    /// The keys of a range, with their values, as they were at one moment.
    ///
    /// # Errors
    /// [`NoAnswer`]; also where that moment is so long ago that the store has forgotten it.
    fn list(&mut self, range: MetadataRange<'_>) -> Result<ListedValues, NoAnswer>;

    /// Makes a change if all comparisons hold. Returns its revision; `None`: they do not hold.
    ///
    /// # Errors
    /// [`NoAnswer`]: it was made, or not.
    fn change(&mut self, change: &MetadataChange) -> Result<Option<u64>, NoAnswer>;
}
