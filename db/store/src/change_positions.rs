//! Where the changes of a table are in its log: for each part of the hashes the position behind the last change.
//!
//! A change is appended, then its position is stored here, then it is published. So a reader that sees a change finds
//! its position, or a later one of another key in the same part. A unit of several changes is appended at its end, and
//! its changes may be seen before: until then their parts are *unknown*. Readers of these wait for the stripe's lock,
//! which the writer holds until the position is known.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::POSITION_PARTS;

/// Stands for a position that is not known yet.
pub(crate) const UNKNOWN_POSITION: u64 = u64::MAX;

const _: () = assert!(POSITION_PARTS.is_power_of_two() && POSITION_PARTS >= crate::limits::STRIPES);

/// A part of the hashes, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashPart(u32);

impl HashPart {
    /// All hashes; their writers hold all stripes.
    pub(crate) const ALL: HashPart = HashPart(u32::MAX);

    /// The part of a hash: it lies within one stripe.
    #[inline]
    pub(crate) fn of(hash: u64) -> HashPart {
        HashPart((hash >> (u64::BITS - POSITION_PARTS.trailing_zeros())) as u32)
    }
}

/// See the head of this file. Each part is written under the lock of its stripe.
#[derive(Debug)]
pub(crate) struct ChangePositions {
    parts: Box<[AtomicU64]>,
    /// The highest of all.
    last: AtomicU64,
    /// Changes whose positions are not known yet.
    unknown: AtomicU64,
}

impl ChangePositions {
    pub(crate) fn new() -> ChangePositions {
        ChangePositions {
            parts: (0..POSITION_PARTS).map(|_| AtomicU64::new(0)).collect(),
            last: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
        }
    }

    /// The position of a part's last change; [`UNKNOWN_POSITION`].
    #[inline]
    pub(crate) fn of(&self, hash: u64) -> u64 {
        self.parts.get(HashPart::of(hash).0 as usize).map_or(0, |part| part.load(Ordering::Acquire))
    }

    /// The position of the table's last change.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// Whether the position of a change is not known yet.
    pub(crate) fn has_unknown(&self) -> bool {
        self.unknown.load(Ordering::Acquire) > 0
    }

    fn store(&self, part: HashPart, position: u64) {
        match self.parts.get(part.0 as usize) {
            Some(one) => one.store(position, Ordering::Release),
            None => self.parts.iter().for_each(|one| one.store(position, Ordering::Release)),
        }
    }

    /// Sets the position of a change that is about to be published.
    pub(crate) fn set(&self, part: HashPart, position: u64) {
        self.last.fetch_max(position, Ordering::Release);
        self.store(part, position);
    }

    /// Notes that a change is about to be published whose position comes later.
    pub(crate) fn begin_unknown(&self, part: HashPart) {
        self.unknown.fetch_add(1, Ordering::Release);
        self.store(part, UNKNOWN_POSITION);
    }

    /// Sets the position of such a change.
    pub(crate) fn end_unknown(&self, part: HashPart, position: u64) {
        self.set(part, position);
        self.unknown.fetch_sub(1, Ordering::Release);
    }
}
