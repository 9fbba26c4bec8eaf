//! A backing that fails as a seed says: for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::object_store::{BackingError, ObjectStore, StoredObject, WriteCondition};

/// Objects behind faults.
#[derive(Debug)]
pub struct FaultyObjects {
    inner: Arc<dyn ObjectStore>,
    random: Mutex<SmallRng>,
    /// Of 1,000 requests, those that fail before anything is done.
    pub refused: AtomicU32,
    /// Of 1,000 writes, those that are done and whose answer is lost.
    pub lost_answers: AtomicU32,
    /// Of 1,000 reads, those that return something else: too short, too long, or with a bit that is flipped.
    pub lies: AtomicU32,
    /// Whether it does not answer at all.
    pub is_gone: AtomicBool,
    /// Whether it takes no writes.
    pub is_full: AtomicBool,
    /// How long each request takes, milliseconds.
    pub slow_ms: AtomicU64,
    /// Reads so far.
    pub reads: AtomicU64,
}

impl FaultyObjects {
    /// Puts faults in front of objects; there are none yet.
    pub fn new(inner: Arc<dyn ObjectStore>, seed: u64) -> Arc<FaultyObjects> {
        Arc::new(FaultyObjects {
            inner,
            random: Mutex::new(SmallRng::seed_from_u64(seed)),
            refused: AtomicU32::new(0),
            lost_answers: AtomicU32::new(0),
            lies: AtomicU32::new(0),
            is_gone: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            slow_ms: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        })
    }

    fn hits(&self, of_1000: &AtomicU32) -> bool {
        self.random.lock().random_range(0..1000) < of_1000.load(Relaxed)
    }

    fn begin(&self) -> Result<(), BackingError> {
        std::thread::sleep(Duration::from_millis(self.slow_ms.load(Relaxed)));
        if self.is_gone.load(Relaxed) || self.hits(&self.refused) {
            return Err(BackingError::Unavailable("the test said so".to_owned()));
        }
        Ok(())
    }

    fn begin_write(&self) -> Result<(), BackingError> {
        self.begin()?;
        if self.is_full.load(Relaxed) { Err(BackingError::Refused("it is full".to_owned())) } else { Ok(()) }
    }

    fn end_write(&self) -> Result<(), BackingError> {
        if self.hits(&self.lost_answers) {
            return Err(BackingError::Unavailable("the answer is lost".to_owned()));
        }
        Ok(())
    }
}

impl ObjectStore for FaultyObjects {
    fn identity(&self) -> Result<Option<String>, BackingError> {
        self.inner.identity()
    }

    fn get(&self, name: &str, most_bytes: usize) -> Result<Option<StoredObject>, BackingError> {
        self.begin()?;
        self.reads.fetch_add(1, Relaxed);
        let mut found = self.inner.get(name, most_bytes)?;
        if let Some(object) = &mut found
            && self.hits(&self.lies)
        {
            let (kind, at) = {
                let mut random = self.random.lock();
                (random.random_range(0..3), random.random_range(0..object.bytes.len().max(1)))
            };
            match kind {
                0 => object.bytes.truncate(at),
                1 => object.bytes.push(0),
                _ => object.bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 4),
            }
        }
        Ok(found)
    }

    fn put(&self, name: &str, bytes: &[u8], condition: &WriteCondition) -> Result<String, BackingError> {
        self.begin_write()?;
        let tag = self.inner.put(name, bytes, condition)?;
        self.end_write().map(|()| tag)
    }

    fn delete(&self, name: &str, condition: &WriteCondition) -> Result<(), BackingError> {
        self.begin_write()?;
        self.inner.delete(name, condition)?;
        self.end_write()
    }
}
