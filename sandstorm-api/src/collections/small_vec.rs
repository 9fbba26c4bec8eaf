//! A vector that is short most of the time.

use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

/// A vector that holds up to `N` values in itself, and more of them in the arena. It is used as a slice.
#[derive(Clone, Debug)]
pub struct SmallVec<T, const N: usize> {
    few: [T; N],
    /// Values in `few`; beyond `N`, all are in `many`.
    len: usize,
    many: Vec<T>,
}

impl<T: Default, const N: usize> Default for SmallVec<T, N> {
    fn default() -> SmallVec<T, N> {
        SmallVec { few: core::array::from_fn(|_| T::default()), len: 0, many: Vec::new() }
    }
}

impl<T: Default, const N: usize> SmallVec<T, N> {
    /// A vector without values.
    ///
    /// ```
    /// use sandstorm_api::collections::SmallVec;
    /// let few: SmallVec<u32, 4> = SmallVec::new();
    /// assert!(few.is_empty());
    /// ```
    pub fn new() -> SmallVec<T, N> {
        SmallVec::default()
    }

    /// Appends a value.
    ///
    /// ```
    /// use sandstorm_api::collections::SmallVec;
    /// let mut few: SmallVec<u32, 4> = SmallVec::new();
    /// few.push(7);
    /// assert_eq!(few[..], [7]);
    /// ```
    pub fn push(&mut self, value: T) {
        if self.len < N {
            self.few[self.len] = value;
        } else {
            if self.len == N {
                self.many.extend(self.few.iter_mut().map(core::mem::take));
            }
            self.many.push(value);
        }
        self.len += 1;
    }

    /// Takes the last value.
    ///
    /// ```
    /// use sandstorm_api::collections::SmallVec;
    /// let mut few: SmallVec<u32, 4> = SmallVec::from_iter([1, 2]);
    /// assert_eq!(few.pop(), Some(2));
    /// ```
    pub fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        if self.len < N {
            return Some(core::mem::take(&mut self.few[self.len]));
        }
        let last = self.many.pop();
        if self.len == N {
            for (few, many) in self.few.iter_mut().zip(self.many.drain(..)) {
                *few = many;
            }
        }
        last
    }

    /// Removes all values.
    ///
    /// ```
    /// use sandstorm_api::collections::SmallVec;
    /// let mut few: SmallVec<u32, 4> = SmallVec::from_iter([1, 2]);
    /// few.clear();
    /// assert!(few.is_empty());
    /// ```
    pub fn clear(&mut self) {
        *self = SmallVec::default();
    }
}

impl<T, const N: usize> Deref for SmallVec<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        if self.len <= N { &self.few[..self.len] } else { &self.many }
    }
}

impl<T, const N: usize> DerefMut for SmallVec<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        if self.len <= N { &mut self.few[..self.len] } else { &mut self.many }
    }
}

impl<T: Default, const N: usize> FromIterator<T> for SmallVec<T, N> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> SmallVec<T, N> {
        let mut vector = SmallVec::new();
        vector.extend(values);
        vector
    }
}

impl<T: Default, const N: usize> Extend<T> for SmallVec<T, N> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        values.into_iter().for_each(|value| self.push(value));
    }
}
