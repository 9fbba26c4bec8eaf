//! Samples single accesses of a table while it serves, so that hot keys are known before an operator asks.
//!
//! A caller asks for the access that comes after a given number of others, takes it later, and asks for the next one.
//! Tables without a wanted sample pay nothing: the word that says so is that of the watches. While one is wanted each
//! access counts down, so as many are skipped as was asked for, and accesses of one message are sampled as single ones
//! are.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sandstorm_net::slots::slot_of;

use crate::limits::WATCH_KEY_BYTES;

/// A key of a watched table: its hash, its beginning, and its bytes.
#[derive(Clone, Copy, Debug)]
pub struct AccessedKey {
    pub(super) hash: u64,
    pub(super) key_len: u32,
    pub(super) prefix: [u8; WATCH_KEY_BYTES],
}

impl AccessedKey {
    /// The key.
    pub fn new(hash: u64, key: &[u8]) -> AccessedKey {
        let mut prefix = [0; WATCH_KEY_BYTES];
        let len = key.len().min(WATCH_KEY_BYTES);
        prefix[..len].copy_from_slice(&key[..len]);
        AccessedKey { hash, key_len: key.len() as u32, prefix }
    }

    /// The beginning of the key.
    pub(super) fn prefix(&self) -> &[u8] {
        &self.prefix[..(self.key_len as usize).min(WATCH_KEY_BYTES)]
    }
}

/// An access that was drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledAccess {
    /// The table's hash of the whole key.
    pub hash: u64,
    /// The beginning of the key.
    pub prefix: Vec<u8>,
    /// Bytes of the whole key.
    pub key_len: usize,
    /// The slot of the whole key, by which the servers of a cluster divide keys.
    pub slot: u16,
    /// Accesses of the table from when it was asked for until it came, itself among them.
    pub accesses: u32,
    /// The time that these took.
    pub took: Duration,
    /// Whether it was a write.
    pub is_write: bool,
}

/// Where an access is drawn: see the head of this file.
#[derive(Debug, Default)]
pub(super) struct AccessSample {
    /// Accesses until the one that is wanted.
    left: AtomicU32,
    drawn: Mutex<SampleState>,
}

#[derive(Debug, Default)]
struct SampleState {
    /// When it was asked for, and how many accesses from then on it was to come.
    asked: Option<(Instant, u32)>,
    taken: Option<TakenAccess>,
}

#[derive(Debug)]
struct TakenAccess {
    at: Instant,
    key: AccessedKey,
    slot: u16,
    is_write: bool,
}

/// Accesses that one is asked for after, at most.
const MOST_ACCESSES: u32 = 1 << 16;

impl AccessSample {
    /// Counts an access; returns whether it was the one that was wanted. It neither allocates nor waits.
    pub(super) fn note(&self, hash: u64, key: &[u8], is_write: bool) -> bool {
        // Of accesses at the same time one gets there. A late one may have counted down what was asked for just now:
        // then the next one is taken.
        if (2..=MOST_ACCESSES).contains(&self.left.fetch_sub(1, Relaxed)) {
            return false;
        }
        // The caller that asks locks it for a moment.
        if let Some(mut state) = self.drawn.try_lock() {
            let (key, slot) = (AccessedKey::new(hash, key), slot_of(key));
            state.taken = Some(TakenAccess { at: Instant::now(), key, slot, is_write });
        }
        true
    }

    /// Takes the access that was asked for, if it has come, and asks for the one after `accesses` more. Only while none
    /// is wanted.
    pub(super) fn ask(&self, accesses: u32) -> Option<SampledAccess> {
        let mut state = self.drawn.lock();
        let (asked, taken) = (state.asked.take(), state.taken.take());
        let accesses = accesses.clamp(1, MOST_ACCESSES);
        state.asked = Some((Instant::now(), accesses));
        self.left.store(accesses, Relaxed);
        asked.zip(taken).map(|((asked_at, accesses), TakenAccess { at, key, slot, is_write })| SampledAccess {
            slot,
            is_write,
            hash: key.hash,
            prefix: key.prefix().to_vec(),
            key_len: key.key_len as usize,
            accesses,
            took: at.saturating_duration_since(asked_at),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::super::RecordTable;
    use super::*;
    use crate::{Epochs, TableConfig, WriteOptions};

    #[test]
    fn the_access_that_was_asked_for_is_drawn_and_no_watch_is_disturbed() {
        let epochs = Epochs::new();
        let participant = epochs.register();
        let table = RecordTable::with_seed(TableConfig::default(), Arc::clone(&epochs), 7);
        let get = |name: &[u8]| {
            table.get(&participant.guard(), table.hash(name), name, 1);
        };
        let put = |name: &[u8]| {
            table.put(&participant, table.hash(name), name, b"value", &WriteOptions::default(), 1).unwrap();
        };
        get(b"before");
        assert_eq!(table.sample_access(3), None, "none was asked for before");
        get(b"first");
        put(b"second");
        assert_eq!(table.sample_access(1), None, "it has not come yet");
        assert!(!table.is_watched(), "this is no watch");
        let long = [b'k'; 200];
        get(&long);
        get(b"after");
        let drawn = table.sample_access(0).expect("the third");
        assert_eq!((drawn.hash, drawn.key_len, drawn.accesses), (table.hash(&long), 200, 3));
        assert_eq!(drawn.prefix, &long[..crate::limits::WATCH_KEY_BYTES]);
        assert_eq!((drawn.slot, drawn.is_write), (slot_of(&long), false), "of the whole key");
        // A watch begins and ends meanwhile, and counts all.
        assert!(table.start_watch() && table.is_watched());
        get(b"watched");
        get(b"watched");
        assert_eq!(table.end_watch(1).requests, 2);
        assert!(!table.is_watched());
        assert_eq!(table.sample_access(1).expect("the next one").prefix, b"watched");
        get(b"last");
        assert!(table.start_watch());
        assert_eq!(table.sample_access(5).expect("drawn before").prefix, b"last");
        get(b"x");
        assert_eq!(table.end_watch(1).requests, 1, "a sample that is wanted does not end with a watch");
        (0..4).for_each(|_| get(b"y"));
        assert_eq!(table.sample_access(1).expect("the fifth").prefix, b"y");
        put(b"written");
        let drawn = table.sample_access(1).expect("a write");
        assert_eq!((&drawn.prefix[..], drawn.is_write), (&b"written"[..], true));
    }

    #[test]
    fn threads_that_count_down_together_draw_one() {
        let epochs = Epochs::new();
        let table = RecordTable::with_seed(TableConfig::default(), Arc::clone(&epochs), 7);
        let over = AtomicBool::new(false);
        table.sample_access(1);
        let drawn = std::thread::scope(|scope| {
            for name in 0..4_u8 {
                let (participant, table, over) = (epochs.register(), &table, &over);
                scope.spawn(move || {
                    while !over.load(Relaxed) {
                        table.get(&participant.guard(), table.hash(&[name]), &[name], 1);
                    }
                });
            }
            let (mut drawn, until) = (Vec::new(), Instant::now() + Duration::from_secs(120));
            while drawn.len() < 200 && Instant::now() < until {
                drawn.extend(table.sample_access(3));
                std::thread::yield_now();
            }
            over.store(true, Relaxed);
            drawn
        });
        assert_eq!(drawn.len(), 200, "whatever is counted down at the same time, the next one comes");
        for sample in drawn {
            assert!(sample.prefix.len() == 1 && sample.prefix[0] < 4 && sample.accesses <= 3, "{sample:?}");
        }
    }
}
