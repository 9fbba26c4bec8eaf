//! The keys of an ordered table in their order, beside the hash table, which stays what decides whether a record is there.
//!
//! How the two agree: whoever adds or removes a record holds the lock of its stripe. It enters the key here before the record can be
//! found, and removes it after the record cannot be found any more; so every record that is there has its key here, and what is here
//! without a record is passed by. Who overwrites a record, or moves it to a larger array, has nothing to do here. A clear puts
//! an empty index in place while all stripes are locked; the old one is emptied piece by piece.
//!
//! Each key is a copy of its own: records are replaced, and those of a key that stays would have to be followed.
//!
//! The list frees what was removed from it by its own collector, whose threads are only pinned within a call of these functions:
//! none of them keeps an entry beyond its return, so that an invocation that is switched out holds nothing up.

use std::collections::Bound;
use std::sync::Arc;

use arc_swap::ArcSwap;
use crossbeam_skiplist::SkipSet;

use crate::limits::INDEX_CHARGE_BYTES;
use crate::store::epochs::Piecemeal;

type Keys = SkipSet<Box<[u8]>>;

/// The keys of an ordered table.
pub(super) struct Index(ArcSwap<Keys>);

impl Index {
    pub(super) fn new() -> Index {
        Index(ArcSwap::from_pointee(Keys::new()))
    }

    /// Enters a key. The stripe of the key is locked.
    pub(super) fn insert(&self, key: &[u8]) {
        self.0.load().insert(key.into());
    }

    /// Removes a key. The stripe of the key is locked.
    pub(super) fn remove(&self, key: &[u8]) {
        self.0.load().remove(key);
    }

    /// Puts an empty index in place. All stripes are locked. What is answered must be retired.
    pub(super) fn clear(&self) -> Box<dyn Piecemeal> {
        Box::new(Emptied(self.0.swap(Arc::new(Keys::new()))))
    }

    /// The keys of this moment.
    pub(super) fn keys(&self) -> Arc<Keys> {
        self.0.load_full()
    }
}

/// Bytes that the key of a record counts against the quota beside the record.
pub(super) fn charge(key_len: usize) -> u64 {
    key_len as u64 + INDEX_CHARGE_BYTES
}

/// An index that nobody adds to any more.
struct Emptied(Arc<Keys>);

impl Piecemeal for Emptied {
    fn free_some(&mut self, units: usize) -> usize {
        (0..units).take_while(|_| self.0.pop_front().is_some()).count()
    }

    fn bytes(&self) -> usize {
        0
    }
}

/// A stretch of keys, and from which end it is read.
#[derive(Clone, Copy, Debug)]
pub struct Span<'k> {
    /// The smallest key that may be part of it.
    pub from: &'k [u8],
    /// `from` itself is no part of it.
    pub past: bool,
    /// The key at which it ends; `None`: it goes on to the largest key.
    pub to: Option<&'k [u8]>,
    /// `to` itself is part of it.
    pub included: bool,
    /// The largest key comes first.
    pub backward: bool,
}

impl<'k> Span<'k> {
    /// The keys with `from <= key < to`; an empty `to` stands for no end.
    pub fn new(from: &'k [u8], to: &'k [u8], backward: bool) -> Span<'k> {
        Span { from, past: false, to: Some(to).filter(|to| !to.is_empty()), included: false, backward }
    }

    /// Whether no key can be part of it.
    pub fn is_empty(&self) -> bool {
        let both = self.included && !self.past;
        self.to.is_some_and(|to| to < self.from || to == self.from && !both)
    }

    /// Takes away everything up to a key that was met, from the end at which it is read.
    pub fn advance(&mut self, met: &'k [u8]) {
        if self.backward {
            (self.to, self.included) = (Some(met), false);
        } else {
            (self.from, self.past) = (met, true);
        }
    }

    /// Its two ends, as ordered collections take them; it must not be empty.
    pub(super) fn ends(&self) -> (Bound<&'k [u8]>, Bound<&'k [u8]>) {
        let from = if self.past { Bound::Excluded(self.from) } else { Bound::Included(self.from) };
        let to = match self.to {
            None => Bound::Unbounded,
            Some(to) if self.included => Bound::Included(to),
            Some(to) => Bound::Excluded(to),
        };
        (from, to)
    }
}
