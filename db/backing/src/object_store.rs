//! The interface of object stores.

use std::fmt::Debug;

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What names this content of it: another content has another tag.
    pub tag: String,
}

/// The condition of a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WriteCondition {
    /// Always.
    #[default]
    Always,
    /// Only if there is no object.
    Absent,
    /// Only if there is an object with this tag.
    Tag(String),
}

impl WriteCondition {
    /// Returns whether it holds where an object has this tag, or there is none.
    pub fn is_met(&self, tag: Option<&str>) -> bool {
        match self {
            WriteCondition::Always => true,
            WriteCondition::Absent => tag.is_none(),
            WriteCondition::Tag(wanted) => tag == Some(wanted),
        }
    }
}

/// The reason why a request to a backing failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackingError {
    /// It does not answer, or not in time.
    #[error("it does not answer: {0}")]
    Unavailable(String),
    /// It refuses: credentials, no room, a name that it does not take.
    #[error("it refuses: {0}")]
    Refused(String),
    /// The condition does not hold: another writer has changed the object.
    #[error("another writer has changed the object")]
    Conflict,
    /// It has something else than what was written.
    #[error("it has something else than what was written: {0}")]
    Damaged(String),
}

/// What has the objects of a table. Calls may take as long as [`crate::limits::REQUEST_MOST`]; no worker makes any.
pub trait ObjectStore: Debug + Send + Sync {
    /// Returns an object; `None`: there is none.
    ///
    /// # Errors
    /// [`BackingError`]; `Damaged` for one longer than `most_bytes`.
    fn get(&self, name: &str, most_bytes: usize) -> Result<Option<StoredObject>, BackingError>;

    /// Writes an object if the condition holds; returns its tag. Readers see the old content or the new one.
    ///
    /// # Errors
    /// [`BackingError`]; `Conflict`: the condition does not hold.
    fn put(&self, name: &str, bytes: &[u8], condition: &WriteCondition) -> Result<String, BackingError>;

    /// Deletes an object, if it is there and the condition holds.
    ///
    /// # Errors
    /// [`BackingError`]; `Conflict`: there is one, and the condition does not hold.
    fn delete(&self, name: &str, condition: &WriteCondition) -> Result<(), BackingError>;

    /// What tells these objects from those that another server finds under the same URL: a folder of another machine,
    /// another server's memory. `None`: there are no others.
    ///
    /// # Errors
    /// [`BackingError`].
    fn identity(&self) -> Result<Option<String>, BackingError> {
        Ok(None)
    }
}

/// What cannot be reached at all, and why: a table whose backing could not be opened at a start.
#[derive(Debug)]
pub struct UnreachableObjects(pub String);

impl ObjectStore for UnreachableObjects {
    fn get(&self, _name: &str, _most_bytes: usize) -> Result<Option<StoredObject>, BackingError> {
        Err(BackingError::Unavailable(self.0.clone()))
    }

    fn put(&self, _name: &str, _bytes: &[u8], _condition: &WriteCondition) -> Result<String, BackingError> {
        Err(BackingError::Unavailable(self.0.clone()))
    }

    fn delete(&self, _name: &str, _condition: &WriteCondition) -> Result<(), BackingError> {
        Err(BackingError::Unavailable(self.0.clone()))
    }
}
