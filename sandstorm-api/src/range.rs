//! Ranges of ordered tables: read in batches, between which other invocations run.

use alloc::format;
use alloc::vec::Vec;
use core::future::Future;
use core::ops;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::host::{HostHandle, RangeRemainder};
use crate::limits::{KEY_BUFFER_BYTES, RANGE_LIMIT};
use crate::{Error, Record};

/// Which end of a range comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The smallest key.
    Forward,
    /// The largest key.
    Backward,
}

/// Refuses limits of 0 and above [`RANGE_LIMIT`].
pub(crate) fn check_limit(limit: usize) -> Result<(), Error> {
    match limit {
        0 => Err(Error::invalid("a range's limit must be at least 1")),
        1..=RANGE_LIMIT => Ok(()),
        _ => Err(Error::invalid(format!(
            "a range's limit may be {RANGE_LIMIT}: read on from the last key that was answered"
        ))),
    }
}

/// What is asked of a range, and what is left of it.
struct RangeReader<'a, 'k> {
    host: HostHandle<'a>,
    table: u64,
    left: RangeRemainder<'k>,
    limit: usize,
}

impl<'a, 'k> RangeReader<'a, 'k> {
    /// Has `read` append what comes next to what was found, until that is all, or `limit`; between two times others may
    /// run.
    fn poll<T: Default>(
        &mut self,
        found: &mut T,
        len: impl Fn(&T) -> usize,
        read: impl Fn(HostHandle<'a>, u64, &mut RangeRemainder<'k>, usize, &mut T) -> Result<(), Error>,
    ) -> Poll<Result<T, Error>> {
        if let Err(error) = check_limit(self.limit) {
            return Poll::Ready(Err(error));
        }
        loop {
            if let Err(error) = read(self.host, self.table, &mut self.left, self.limit - len(found), found) {
                return Poll::Ready(Err(error));
            }
            if self.left.is_finished() || len(found) >= self.limit {
                return Poll::Ready(Ok(core::mem::take(found)));
            }
            if self.host.interleave() {
                return Poll::Pending;
            }
        }
    }
}

/// A range under way; see [`Db::range`](crate::Db::range).
#[must_use = "a read does nothing until it is awaited"]
pub struct Range<'a, 'k> {
    asked: RangeReader<'a, 'k>,
    records: Vec<Record<'a>>,
}

impl<'a, 'k> Range<'a, 'k> {
    pub(crate) fn new(host: HostHandle<'a>, table: u64, left: RangeRemainder<'k>, limit: usize) -> Range<'a, 'k> {
        Range { asked: RangeReader { host, table, left, limit }, records: Vec::new() }
    }
}

impl<'a> Future for Range<'a, '_> {
    type Output = Result<Vec<Record<'a>>, Error>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let Range { asked, records } = self.get_mut();
        asked.poll(records, Vec::len, |host, table, left, limit, records| host.range(table, left, limit, records))
    }
}

/// Keys that follow each other in an ordered table; see [`Db::range_keys`](crate::Db::range_keys).
///
/// ```
/// # use sandstorm_api::Keys;
/// # fn lengths(keys: Keys) -> usize {
/// let mut bytes = 0;
/// for key in &keys {
///     bytes += key.len(); // a slice of what all keys lie in
/// }
/// # bytes
/// # }
/// # assert_eq!(lengths(Keys::default()), 0);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    pub(crate) bytes: Vec<u8>,
    pub(crate) ends: Vec<usize>,
}

impl Keys {
    /// How many.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The key at a position, 0 being the first that was met.
    pub fn get(&self, at: usize) -> Option<&[u8]> {
        self.bytes.get(self.place(at)?)
    }

    /// The last one that was met.
    pub fn last(&self) -> Option<&[u8]> {
        self.get(self.len().checked_sub(1)?)
    }

    /// All of them, in the order in which they were met.
    pub fn iter(&self) -> KeysIter<'_> {
        KeysIter { keys: self, left: 0..self.len() }
    }

    fn place(&self, at: usize) -> Option<ops::Range<usize>> {
        let start = if at == 0 { 0 } else { *self.ends.get(at - 1)? };
        Some(start..*self.ends.get(at)?)
    }

    /// Where the last one lies.
    pub(crate) fn last_place(&self) -> Option<ops::Range<usize>> {
        self.place(self.len().checked_sub(1)?)
    }
}

/// Goes through [`Keys`]: each a slice of what all of them lie in.
#[derive(Clone, Debug)]
pub struct KeysIter<'k> {
    keys: &'k Keys,
    left: ops::Range<usize>,
}

impl<'k> Iterator for KeysIter<'k> {
    type Item = &'k [u8];

    fn next(&mut self) -> Option<&'k [u8]> {
        self.keys.get(self.left.next()?)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left.size_hint()
    }
}

impl DoubleEndedIterator for KeysIter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.keys.get(self.left.next_back()?)
    }
}

impl ExactSizeIterator for KeysIter<'_> {}

impl<'k> IntoIterator for &'k Keys {
    type Item = &'k [u8];
    type IntoIter = KeysIter<'k>;

    fn into_iter(self) -> KeysIter<'k> {
        self.iter()
    }
}

/// Goes through [`Keys`] that nobody needs any more: each copied, since they lie in one piece.
#[derive(Clone, Debug)]
pub struct KeysIntoIter {
    keys: Keys,
    left: ops::Range<usize>,
}

impl Iterator for KeysIntoIter {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        self.keys.get(self.left.next()?).map(<[u8]>::to_vec)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left.size_hint()
    }
}

impl DoubleEndedIterator for KeysIntoIter {
    fn next_back(&mut self) -> Option<Vec<u8>> {
        self.keys.get(self.left.next_back()?).map(<[u8]>::to_vec)
    }
}

impl ExactSizeIterator for KeysIntoIter {}

impl IntoIterator for Keys {
    type Item = Vec<u8>;
    type IntoIter = KeysIntoIter;

    fn into_iter(self) -> KeysIntoIter {
        let left = 0..self.len();
        KeysIntoIter { keys: self, left }
    }
}

/// A range of keys under way; see [`Db::range_keys`](crate::Db::range_keys).
#[must_use = "a read does nothing until it is awaited"]
pub struct RangeKeys<'a, 'k> {
    asked: RangeReader<'a, 'k>,
    keys: Keys,
}

impl<'a, 'k> RangeKeys<'a, 'k> {
    pub(crate) fn new(host: HostHandle<'a>, table: u64, left: RangeRemainder<'k>, limit: usize) -> RangeKeys<'a, 'k> {
        RangeKeys { asked: RangeReader { host, table, left, limit }, keys: Keys::default() }
    }
}

impl Future for RangeKeys<'_, '_> {
    type Output = Result<Keys, Error>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let RangeKeys { asked, keys } = self.get_mut();
        asked.poll(keys, Keys::len, |host, table, left, limit, keys| {
            let (had, mut room) = (keys.len(), KEY_BUFFER_BYTES);
            loop {
                host.range_keys(table, left, limit, room, keys)?;
                if keys.len() > had || left.is_finished() {
                    return Ok(());
                }
                // Of the next key nothing is known but that it is longer.
                room *= 2;
            }
        })
    }
}
