//! A key of an ordered table, and a stretch of keys.

use smallvec::SmallVec;

use crate::limits::INDEX_INLINE_KEY_BYTES;

/// A key in the order.
pub(super) type IndexKey = SmallVec<[u8; INDEX_INLINE_KEY_BYTES]>;

/// A stretch of keys, and the end from which it is read.
#[derive(Clone, Copy, Debug)]
pub struct KeyRange<'k> {
    /// The smallest key that may be part of it.
    pub from: &'k [u8],
    /// Excludes `from` itself.
    pub past: bool,
    /// The key at which it ends; `None`: it goes on to the largest key.
    pub to: Option<&'k [u8]>,
    /// Includes `to` itself.
    pub included: bool,
    /// The largest key comes first.
    pub backward: bool,
}

impl<'k> KeyRange<'k> {
    /// Returns the keys with `from <= key < to`; an empty `to` stands for no end.
    #[inline]
    pub fn new(from: &'k [u8], to: &'k [u8], backward: bool) -> KeyRange<'k> {
        KeyRange { from, past: false, to: Some(to).filter(|to| !to.is_empty()), included: false, backward }
    }

    /// Returns whether no key can be part of it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let both = self.included && !self.past;
        self.to.is_some_and(|to| to < self.from || to == self.from && !both)
    }

    /// Removes everything up to a key that was met, from the end at which it is read.
    #[inline]
    pub fn advance(&mut self, met: &'k [u8]) {
        if self.backward {
            (self.to, self.included) = (Some(met), false);
        } else {
            (self.from, self.past) = (met, true);
        }
    }

    /// Returns whether a key that is met lies beyond the end at which it stops.
    pub(super) fn is_beyond(&self, key: &[u8]) -> bool {
        if self.backward {
            key < self.from || self.past && key == self.from
        } else {
            self.to.is_some_and(|to| key > to || !self.included && key == to)
        }
    }
}
