//! Promise: what settles a conflict gives up what was there when it was asked for, and nothing that came meanwhile.

use parking_lot::Mutex;

use super::*;
use crate::object_store::{BackingError, StoredObject};

/// Objects of which one get does something else before it returns what it has read.
#[derive(Debug)]
struct HookedObjects {
    inner: Arc<dyn ObjectStore>,
    hook: Arc<GetHook>,
}

#[derive(Default)]
struct GetHook(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl std::fmt::Debug for GetHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GetHook")
    }
}

impl ObjectStore for HookedObjects {
    fn get(&self, name: &str, most_bytes: usize) -> Result<Option<StoredObject>, BackingError> {
        let found = self.inner.get(name, most_bytes);
        let hook = self.hook.0.lock().take();
        if let Some(hook) = hook {
            hook();
        }
        found
    }

    fn put(&self, name: &str, bytes: &[u8], condition: &WriteCondition) -> Result<String, BackingError> {
        self.inner.put(name, bytes, condition)
    }

    fn delete(&self, name: &str, condition: &WriteCondition) -> Result<(), BackingError> {
        self.inner.delete(name, condition)
    }
}

/// A table whose record `k` has "3", and its backing "2"; the two are in conflict.
fn in_conflict() -> (BackingBench, Arc<GetHook>) {
    let hook = Arc::<GetHook>::default();
    let wrap = |inner| Arc::new(HookedObjects { inner, hook: Arc::clone(&hook) }) as Arc<dyn ObjectStore>;
    let mut bench = over_through(Arc::default(), settings(BackingPolicy::WriteBack), (1 << 20, 1), wrap);
    bench.put(b"k", b"1").unwrap();
    bench.flush(ConflictChoice::Keep).unwrap();
    bench.write_elsewhere(b"k", b"2");
    bench.put(b"k", b"3").unwrap();
    assert_eq!(bench.flush(ConflictChoice::Keep), Err(FlushError::Conflicts(1)));
    (bench, hook)
}

/// What a client does on another thread.
fn put_as_other(epochs: &Arc<Epochs>, table: &RecordTable, value: &[u8]) {
    let participant = epochs.register();
    table.put(&participant, table.hash(b"k"), b"k", value, &WriteOptions::default(), unix_ms()).unwrap();
}

#[test]
fn a_change_that_comes_while_theirs_is_read_stays_and_is_in_conflict() {
    let (mut bench, hook) = in_conflict();
    let (epochs, table) = (Arc::clone(&bench.epochs), Arc::clone(&bench.table));
    *hook.0.lock() = Some(Box::new(move || put_as_other(&epochs, &table, b"4")));
    assert_eq!(bench.flush(ConflictChoice::Theirs), Err(FlushError::Conflicts(1)));
    assert!(hook.0.lock().is_none(), "it was read");
    assert_eq!(bench.get(b"k").unwrap(), Some(b"4".to_vec()), "a client was told that it was made");
    bench.flush(ConflictChoice::Theirs).unwrap();
    assert_eq!((bench.get(b"k").unwrap(), bench.object(b"k")), (Some(b"2".to_vec()), Some(b"2".to_vec())));
    assert_eq!((bench.backed.stats().dirty_keys, bench.backed.stats().dirty_bytes), (0, 0));
}

#[test]
fn of_two_that_settle_a_conflict_the_first_one_counts_and_the_other_gives_up_nothing_later() {
    let (mut bench, hook) = in_conflict();
    let (epochs, table, backed) = (Arc::clone(&bench.epochs), Arc::clone(&bench.table), Arc::clone(&bench.backed));
    *hook.0.lock() = Some(Box::new(move || {
        backed.flush(&mut epochs.register(), ConflictChoice::Ours, LONG).unwrap();
        put_as_other(&epochs, &table, b"5");
    }));
    bench.flush(ConflictChoice::Theirs).unwrap();
    assert_eq!(bench.get(b"k").unwrap(), Some(b"5".to_vec()));
    bench.flush(ConflictChoice::Keep).unwrap();
    assert_eq!(bench.object(b"k"), Some(b"5".to_vec()));
    assert_eq!((bench.backed.stats().conflicted_keys, bench.backed.stats().dirty_bytes), (0, 0));
}
