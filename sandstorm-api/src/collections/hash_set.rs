//! A set by hashes.

use core::borrow::Borrow;
use core::hash::Hash;

use super::HashMap;

/// A set by hashes: a [`HashMap`] of keys alone. It lists its values in the order in which they were inserted; a
/// removal puts the last one into the gap.
#[derive(Clone, Debug)]
pub struct HashSet<T>(HashMap<T, ()>);

impl<T> Default for HashSet<T> {
    fn default() -> HashSet<T> {
        HashSet(HashMap::default())
    }
}

impl<T> HashSet<T> {
    /// A set without values; it takes no memory until there is one.
    ///
    /// ```
    /// use sandstorm_api::collections::HashSet;
    /// let seen: HashSet<&str> = HashSet::new();
    /// assert!(seen.is_empty());
    /// ```
    pub fn new() -> HashSet<T> {
        HashSet::default()
    }

    /// Number of values.
    ///
    /// ```
    /// use sandstorm_api::collections::HashSet;
    /// assert_eq!(HashSet::from_iter(["apple", "pear", "apple"]).len(), 2);
    /// ```
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are none.
    ///
    /// ```
    /// use sandstorm_api::collections::HashSet;
    /// assert!(HashSet::<u8>::new().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The values.
    ///
    /// ```
    /// use sandstorm_api::collections::HashSet;
    /// assert!(HashSet::from_iter(["pear", "apple"]).iter().eq([&"pear", &"apple"]), "in the order of insertion");
    /// ```
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        self.0.keys()
    }

    /// Removes all values.
    ///
    /// ```
    /// use sandstorm_api::collections::HashSet;
    /// let mut seen = HashSet::from_iter(["apple"]);
    /// seen.clear();
    /// assert!(seen.is_empty());
    /// ```
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl<T: Hash + Eq> HashSet<T> {
    /// Adds a value; returns whether it was not there.
    ///
    /// ```
    /// use sandstorm_api::collections::HashSet;
    /// let mut seen = HashSet::new();
    /// assert_eq!((seen.insert("apple"), seen.insert("apple")), (true, false));
    /// ```
    pub fn insert(&mut self, value: T) -> bool {
        self.0.insert(value, ()).is_none()
    }

    /// Returns whether the value is there.
    ///
    /// ```
    /// use sandstorm_api::collections::HashSet;
    /// assert!(HashSet::from_iter(["apple"]).contains("apple"));
    /// ```
    pub fn contains<Q: Hash + Eq + ?Sized>(&self, value: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.0.contains_key(value)
    }

    /// Removes a value; returns whether it was there.
    ///
    /// ```
    /// use sandstorm_api::collections::HashSet;
    /// let mut seen = HashSet::from_iter(["apple"]);
    /// assert_eq!((seen.remove("apple"), seen.remove("apple")), (true, false));
    /// ```
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, value: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.0.remove(value).is_some()
    }

    /// Keeps the values of which `keep` says so, in their order, and removes the others.
    ///
    /// ```
    /// use sandstorm_api::collections::HashSet;
    /// let mut numbers = HashSet::from_iter([1, 2, 3, 4]);
    /// numbers.retain(|number| number % 2 == 0);
    /// assert!(numbers.iter().eq([&2, &4]));
    /// ```
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.0.retain(|value, ()| keep(value));
    }
}

impl<T> IntoIterator for HashSet<T> {
    type Item = T;
    type IntoIter = core::iter::Map<alloc::vec::IntoIter<(T, ())>, fn((T, ())) -> T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().map(|(value, ())| value)
    }
}

impl<T: Hash + Eq> FromIterator<T> for HashSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> HashSet<T> {
        let mut set = HashSet::new();
        set.extend(values);
        set
    }
}

impl<T: Hash + Eq> Extend<T> for HashSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        for value in values {
            self.insert(value);
        }
    }
}
