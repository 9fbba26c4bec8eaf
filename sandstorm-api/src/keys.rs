//! Keys that follow each other in an ordered table, and in which direction.

use alloc::vec::Vec;
use core::ops;

/// The end of a range that comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The smallest key.
    Forward,
    /// The largest key.
    Backward,
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
    /// Returns the number of keys.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let some = db.range_keys(table, b"", b"", 100, Direction::Forward).await?;
    /// assert!(some.len() <= 100);
    /// # Ok(()) }
    /// ```
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// There are none.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let is_empty = db.range_keys(table, b"", b"", 1, Direction::Forward).await?.is_empty();
    /// # Ok(()) }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The key at a position, 0 being the first that was met.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let some = db.range_keys(table, b"", b"", 3, Direction::Forward).await?;
    /// let third = some.get(2);
    /// # Ok(()) }
    /// ```
    pub fn get(&self, at: usize) -> Option<&[u8]> {
        self.bytes.get(self.place(at)?)
    }

    /// The last one that was met.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let page = db.range_keys(table, b"", b"", 100, Direction::Forward).await?;
    /// let next = page.last().map(|last| [last, &[0]].concat());
    /// # Ok(()) }
    /// ```
    pub fn last(&self) -> Option<&[u8]> {
        self.get(self.len().checked_sub(1)?)
    }

    /// All of them, in the order in which they were met.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let some = db.range_keys(table, b"", b"", 100, Direction::Forward).await?;
    /// let bytes: usize = some.iter().map(|key| key.len()).sum();
    /// # Ok(()) }
    /// ```
    pub fn iter(&self) -> KeysIter<'_> {
        KeysIter { keys: self, left: 0..self.len() }
    }

    fn place(&self, at: usize) -> Option<ops::Range<usize>> {
        let start = if at == 0 { 0 } else { *self.ends.get(at - 1)? };
        Some(start..*self.ends.get(at)?)
    }

    /// Returns the range of the last key's bytes.
    pub(crate) fn last_place(&self) -> Option<ops::Range<usize>> {
        self.place(self.len().checked_sub(1)?)
    }
}

/// Iterates over [`Keys`]: each is a slice of the bytes that hold all of them.
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

/// Iterates over [`Keys`] by value: each key is copied, since they lie in one piece.
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
