//! A hash map, and a vector that needs no memory of the arena while it is short. (`core` and `alloc` have `BTreeMap`,
//! `BTreeSet`, `VecDeque` and `BinaryHeap`.)
//!
//! ```
//! use sandstorm_api::collections::{HashMap, SmallVec};
//!
//! let mut stock = HashMap::new();
//! stock.insert("tea", 3);
//! *stock.get_or_insert_with("milk", || 0) += 5;
//! assert_eq!((stock.remove("milk"), stock.get("tea"), stock.len()), (Some(5), Some(&3), 1));
//! let parts: SmallVec<&str, 4> = "a,b".split(',').collect();
//! assert_eq!(&parts[..], ["a", "b"]);
//! ```

use alloc::vec::Vec;
use core::borrow::Borrow;
use core::hash::{Hash, Hasher};
use core::ops::{Deref, DerefMut};

/// A map by hashes: an entry is found in constant time. It lists its entries in the order in which they were inserted,
/// the same in each run; a removal puts the last one into the gap.
///
/// Hashes are XXH64's with a fixed seed: whoever chooses keys on purpose can make them collide, which costs time of the
/// call's own budget.
#[derive(Clone, Debug)]
pub struct HashMap<K, V> {
    entries: Vec<(K, V)>,
    /// Places of entries, by their hashes: of a power of two, at least a quarter of them free.
    slots: Vec<u32>,
}

/// A slot without an entry.
const FREE: u32 = u32::MAX;

impl<K, V> Default for HashMap<K, V> {
    fn default() -> HashMap<K, V> {
        HashMap { entries: Vec::new(), slots: Vec::new() }
    }
}

/// Feeds what is hashed to a multiplication whose halves are folded.
struct FoldHasher(u64);

impl FoldHasher {
    fn add(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

impl Hasher for FoldHasher {
    fn finish(&self) -> u64 {
        crate::hash::xxh64(&self.0.to_le_bytes(), 0)
    }

    fn write(&mut self, bytes: &[u8]) {
        self.add(crate::hash::xxh64(bytes, 0));
    }

    fn write_u8(&mut self, number: u8) {
        self.add(number.into());
    }

    fn write_u16(&mut self, number: u16) {
        self.add(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.add(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.add(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.add(number as u64);
    }
}

fn hash_of<Q: Hash + ?Sized>(key: &Q) -> u64 {
    let mut hasher = FoldHasher(0x2545_f491_4f6c_dd1d);
    key.hash(&mut hasher);
    hasher.finish()
}

impl<K, V> HashMap<K, V> {
    /// A map without entries; it takes no memory until there is one.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// let stock: HashMap<&str, u32> = HashMap::new();
    /// assert!(stock.is_empty());
    /// ```
    pub fn new() -> HashMap<K, V> {
        HashMap::default()
    }

    /// Number of entries.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// assert_eq!(HashMap::from_iter([("apple", 3)]).len(), 1);
    /// ```
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are none.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// assert!(HashMap::<u8, u8>::new().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// let stock = HashMap::from_iter([("pear", 4), ("apple", 3)]);
    /// assert!(stock.iter().eq([(&"pear", &4), (&"apple", &3)]), "in the order of insertion");
    /// ```
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    /// Keys, and values that can be changed.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// let mut stock = HashMap::from_iter([("apple", 3)]);
    /// stock.iter_mut().for_each(|(_, count)| *count += 1);
    /// assert_eq!(stock.get("apple"), Some(&4));
    /// ```
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = (&K, &mut V)> {
        self.entries.iter_mut().map(|(key, value)| (&*key, value))
    }

    /// The keys.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// assert!(HashMap::from_iter([("apple", 3)]).keys().eq([&"apple"]));
    /// ```
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> {
        self.entries.iter().map(|(key, _)| key)
    }

    /// The values.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// assert_eq!(HashMap::from_iter([("apple", 3), ("pear", 4)]).values().sum::<u32>(), 7);
    /// ```
    pub fn values(&self) -> impl ExactSizeIterator<Item = &V> {
        self.entries.iter().map(|(_, value)| value)
    }

    /// Removes all entries.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// let mut stock = HashMap::from_iter([("apple", 3)]);
    /// stock.clear();
    /// assert!(stock.is_empty());
    /// ```
    pub fn clear(&mut self) {
        self.entries.clear();
        self.slots.clear();
    }
}

impl<K: Hash + Eq, V> HashMap<K, V> {
    /// The slot of a key, or the free one where it would be. There is a free one.
    fn slot<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        let mask = self.slots.len() - 1;
        let mut slot = hash_of(key) as usize & mask;
        while let Some((found, _)) = self.entries.get(self.slots[slot] as usize) {
            if found.borrow() == key {
                break;
            }
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// The slot of an entry.
    fn slot_of_entry(&self, place: usize) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = hash_of(&self.entries[place].0) as usize & mask;
        while self.slots[slot] != place as u32 {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// Where the entry of a key is.
    fn place<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        if self.slots.is_empty() {
            return None;
        }
        let place = self.slots[self.slot(key)];
        (place != FREE).then_some(place as usize)
    }

    /// The value of a key.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// assert_eq!(HashMap::from_iter([("apple", 3)]).get("apple"), Some(&3));
    /// ```
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.place(key).map(|place| &self.entries[place].1)
    }

    /// The value of a key, to be changed.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// let mut stock = HashMap::from_iter([("apple", 3)]);
    /// *stock.get_mut("apple").unwrap() += 1;
    /// assert_eq!(stock.get("apple"), Some(&4));
    /// ```
    pub fn get_mut<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.place(key).map(|place| &mut self.entries[place].1)
    }

    /// Returns whether there is an entry of that key.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// assert!(HashMap::from_iter([("apple", 3)]).contains_key("apple"));
    /// ```
    pub fn contains_key<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.place(key).is_some()
    }

    /// Sets the value of a key; returns the one that it had.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// let mut stock = HashMap::new();
    /// assert_eq!((stock.insert("apple", 3), stock.insert("apple", 4)), (None, Some(3)));
    /// ```
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.place(&key) {
            Some(place) => Some(core::mem::replace(&mut self.entries[place].1, value)),
            None => {
                self.add(key, value);
                None
            }
        }
    }

    /// The value of a key, to be changed; made first if there is none.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// let mut stock = HashMap::new();
    /// *stock.get_or_insert_with("apple", || 0) += 3;
    /// assert_eq!(stock.get("apple"), Some(&3));
    /// ```
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        let place = match self.place(&key) {
            Some(place) => place,
            None => self.add(key, make()),
        };
        &mut self.entries[place].1
    }

    /// Removes an entry; returns its value.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// let mut stock = HashMap::from_iter([("apple", 3)]);
    /// assert_eq!((stock.remove("apple"), stock.remove("apple")), (Some(3), None));
    /// ```
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let place = self.place(key)?;
        let (slot, last) = (self.slot(key), self.entries.len() - 1);
        let of_last = self.slot_of_entry(last);
        // The last entry takes its place.
        self.slots[of_last] = place as u32;
        let (_, value) = self.entries.swap_remove(place);
        self.close_gap(slot);
        Some(value)
    }

    /// Frees a slot, and moves those behind it that would not be found any more.
    fn close_gap(&mut self, slot: usize) {
        let mask = self.slots.len() - 1;
        let (mut gap, mut at) = (slot, slot);
        loop {
            at = (at + 1) & mask;
            let place = self.slots[at];
            if place == FREE {
                break;
            }
            let home = hash_of(&self.entries[place as usize].0) as usize & mask;
            // Whether its home is not between the gap, exclusively, and where it is.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.slots[gap] = place;
                gap = at;
            }
        }
        self.slots[gap] = FREE;
    }

    /// Adds an entry whose key is not there; returns its place.
    fn add(&mut self, key: K, value: V) -> usize {
        if (self.entries.len() + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }
        let (slot, place) = (self.slot(&key), self.entries.len());
        self.slots[slot] = place as u32;
        self.entries.push((key, value));
        place
    }

    fn grow(&mut self) {
        let len = (self.slots.len() * 2).max(8);
        self.slots.clear();
        self.slots.resize(len, FREE);
        for place in 0..self.entries.len() {
            let mut slot = hash_of(&self.entries[place].0) as usize & (len - 1);
            while self.slots[slot] != FREE {
                slot = (slot + 1) & (len - 1);
            }
            self.slots[slot] = place as u32;
        }
    }
}

impl<K, V> IntoIterator for HashMap<K, V> {
    type Item = (K, V);
    type IntoIter = alloc::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

impl<K: Hash + Eq, V> FromIterator<(K, V)> for HashMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> HashMap<K, V> {
        let mut map = HashMap::new();
        map.extend(entries);
        map
    }
}

impl<K: Hash + Eq, V> Extend<(K, V)> for HashMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

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
