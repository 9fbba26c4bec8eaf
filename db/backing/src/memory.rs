//! Objects in the server's memory, by a name that tables of the process share: for tests and trials.

use std::sync::{Arc, LazyLock, Weak};

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::object_store::{BackingError, ObjectStore, StoredObject, WriteCondition};

/// Objects in memory.
#[derive(Debug, Default)]
pub struct MemoryObjects {
    state: Mutex<MemoryState>,
    /// A random number.
    identity: MemoryIdentity,
}

#[derive(Debug)]
struct MemoryIdentity(u64);

impl Default for MemoryIdentity {
    fn default() -> MemoryIdentity {
        MemoryIdentity(rand::random())
    }
}

#[derive(Debug, Default)]
struct MemoryState {
    objects: HashMap<String, StoredObject>,
    writes: u64,
}

static SHARED: LazyLock<Mutex<HashMap<String, Weak<MemoryObjects>>>> = LazyLock::new(Mutex::default);

impl MemoryObjects {
    /// Returns those of a name, which all that ask for it share while one of them has them.
    pub fn shared(name: &str) -> Arc<MemoryObjects> {
        let mut all = SHARED.lock();
        all.retain(|_, objects| objects.strong_count() > 0);
        if let Some(objects) = all.get(name).and_then(Weak::upgrade) {
            return objects;
        }
        let objects = Arc::new(MemoryObjects::default());
        all.insert(name.to_owned(), Arc::downgrade(&objects));
        objects
    }

    /// Returns the names of all objects, in order.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.state.lock().objects.keys().cloned().collect();
        names.sort();
        names
    }
}

impl ObjectStore for MemoryObjects {
    fn identity(&self) -> Result<Option<String>, BackingError> {
        Ok(Some(format!("{:x}", self.identity.0)))
    }

    fn get(&self, name: &str, most_bytes: usize) -> Result<Option<StoredObject>, BackingError> {
        let found = self.state.lock().objects.get(name).cloned();
        match found {
            Some(object) if object.bytes.len() > most_bytes => Err(too_long(object.bytes.len(), most_bytes)),
            found => Ok(found),
        }
    }

    fn put(&self, name: &str, bytes: &[u8], condition: &WriteCondition) -> Result<String, BackingError> {
        let mut state = self.state.lock();
        if !condition.is_met(state.objects.get(name).map(|object| &*object.tag)) {
            return Err(BackingError::Conflict);
        }
        state.writes += 1;
        let tag = state.writes.to_string();
        state.objects.insert(name.to_owned(), StoredObject { bytes: bytes.to_vec(), tag: tag.clone() });
        Ok(tag)
    }

    fn delete(&self, name: &str, condition: &WriteCondition) -> Result<(), BackingError> {
        let mut state = self.state.lock();
        match state.objects.get(name) {
            Some(object) if !condition.is_met(Some(&object.tag)) => return Err(BackingError::Conflict),
            Some(_) => drop(state.objects.remove(name)),
            None => {}
        }
        Ok(())
    }
}

/// An object is longer than a record may be.
pub fn too_long(bytes: usize, most_bytes: usize) -> BackingError {
    BackingError::Damaged(format!("an object of {bytes} bytes or more; a record has {most_bytes} at most"))
}
