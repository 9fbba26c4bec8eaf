//! A map by hashes.

use alloc::vec::Vec;
use core::borrow::Borrow;
use core::hash::{Hash, Hasher};

/// A map by hashes: an entry is found in constant time. It lists its entries in the order in which they were inserted,
/// the same in each run; a removal puts the last one into the gap.
///
/// Hashes are XXH64's with a fixed seed: a client that chooses keys on purpose can make them collide, which costs time
/// of the call's own budget.
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

    /// The entry of a key, to be looked at, changed or made with one search.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// let mut stock = HashMap::new();
    /// for article in ["apple", "pear", "apple"] {
    ///     *stock.entry(article).or_insert(0) += 1;
    /// }
    /// assert_eq!((stock.get("apple"), stock.get("pear")), (Some(&2), Some(&1)));
    /// ```
    pub fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        match self.place(&key) {
            Some(place) => Entry::Occupied(OccupiedEntry { map: self, place }),
            None => Entry::Vacant(VacantEntry { map: self, key }),
        }
    }

    /// Keeps the entries of which `keep` says so, in their order, and removes the others. It may change values.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// let mut stock = HashMap::from_iter([("apple", 0), ("pear", 4), ("plum", 1)]);
    /// stock.retain(|_, count| *count > 0);
    /// assert!(stock.keys().eq([&"pear", &"plum"]) && stock.get("apple").is_none());
    /// ```
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        let before = self.entries.len();
        self.entries.retain_mut(|(key, value)| keep(key, value));
        if self.entries.len() < before {
            self.fill_slots(self.slots.len());
        }
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
        Some(self.remove_at(self.slot(key), place))
    }

    /// Removes the entry at that place, whose slot this is.
    fn remove_at(&mut self, slot: usize, place: usize) -> V {
        let of_last = self.slot_of_entry(self.entries.len() - 1);
        // The last entry takes its place.
        self.slots[of_last] = place as u32;
        let (_, value) = self.entries.swap_remove(place);
        self.close_gap(slot);
        value
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
        self.fill_slots((self.slots.len() * 2).max(8));
    }

    /// Writes the places of all entries anew, into so many slots.
    fn fill_slots(&mut self, len: usize) {
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

/// The entry of a key in a [`HashMap`]; see [`HashMap::entry`].
#[derive(Debug)]
pub enum Entry<'m, K, V> {
    /// There is one.
    Occupied(OccupiedEntry<'m, K, V>),
    /// There is none.
    Vacant(VacantEntry<'m, K, V>),
}

/// An entry that is there.
#[derive(Debug)]
pub struct OccupiedEntry<'m, K, V> {
    map: &'m mut HashMap<K, V>,
    place: usize,
}

/// A place for an entry that is not there.
#[derive(Debug)]
pub struct VacantEntry<'m, K, V> {
    map: &'m mut HashMap<K, V>,
    key: K,
}

impl<'m, K: Hash + Eq, V> Entry<'m, K, V> {
    /// The value, which is this one if there was none.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// let mut stock = HashMap::from_iter([("apple", 3)]);
    /// assert_eq!((*stock.entry("apple").or_insert(7), *stock.entry("pear").or_insert(7)), (3, 7));
    /// ```
    pub fn or_insert(self, value: V) -> &'m mut V {
        self.or_insert_with(|| value)
    }

    /// The value, which is made if there was none.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// let mut lists: HashMap<&str, Vec<u32>> = HashMap::new();
    /// lists.entry("apple").or_insert_with(Vec::new).push(3);
    /// assert_eq!(lists.get("apple"), Some(&vec![3]));
    /// ```
    pub fn or_insert_with(self, make: impl FnOnce() -> V) -> &'m mut V {
        match self {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(make()),
        }
    }

    /// The value, which is the type's default if there was none.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// let mut stock: HashMap<&str, u32> = HashMap::new();
    /// *stock.entry("apple").or_default() += 3;
    /// assert_eq!(stock.get("apple"), Some(&3));
    /// ```
    pub fn or_default(self) -> &'m mut V
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }

    /// Changes the value, if there is one.
    ///
    /// ```
    /// use sandstorm_api::collections::HashMap;
    /// let mut stock = HashMap::from_iter([("apple", 3)]);
    /// stock.entry("apple").and_modify(|count| *count += 1).or_insert(0);
    /// assert_eq!(stock.get("apple"), Some(&4));
    /// ```
    #[must_use = "what it gives makes the entry, if there is none"]
    pub fn and_modify(mut self, change: impl FnOnce(&mut V)) -> Entry<'m, K, V> {
        if let Entry::Occupied(entry) = &mut self {
            change(entry.get_mut());
        }
        self
    }
}

impl<'m, K: Hash + Eq, V> OccupiedEntry<'m, K, V> {
    /// The value.
    ///
    /// ```
    /// use sandstorm_api::collections::{Entry, HashMap};
    /// let mut stock = HashMap::from_iter([("apple", 3)]);
    /// let Entry::Occupied(apple) = stock.entry("apple") else { panic!("it is there") };
    /// assert_eq!(*apple.get(), 3);
    /// ```
    pub fn get(&self) -> &V {
        &self.map.entries[self.place].1
    }

    /// The value, to be changed.
    ///
    /// ```
    /// use sandstorm_api::collections::{Entry, HashMap};
    /// let mut stock = HashMap::from_iter([("apple", 3)]);
    /// let Entry::Occupied(mut apple) = stock.entry("apple") else { panic!("it is there") };
    /// *apple.get_mut() += 1;
    /// assert_eq!(stock.get("apple"), Some(&4));
    /// ```
    pub fn get_mut(&mut self) -> &mut V {
        &mut self.map.entries[self.place].1
    }

    /// The value, to be changed for as long as the map is borrowed.
    ///
    /// ```
    /// use sandstorm_api::collections::{Entry, HashMap};
    /// let mut stock = HashMap::from_iter([("apple", 3)]);
    /// let Entry::Occupied(apple) = stock.entry("apple") else { panic!("it is there") };
    /// assert_eq!(*apple.into_mut(), 3);
    /// ```
    pub fn into_mut(self) -> &'m mut V {
        &mut self.map.entries[self.place].1
    }

    /// Removes the entry; returns its value.
    ///
    /// ```
    /// use sandstorm_api::collections::{Entry, HashMap};
    /// let mut stock = HashMap::from_iter([("apple", 3)]);
    /// let Entry::Occupied(apple) = stock.entry("apple") else { panic!("it is there") };
    /// assert_eq!((apple.remove(), stock.len()), (3, 0));
    /// ```
    pub fn remove(self) -> V {
        self.map.remove_at(self.map.slot_of_entry(self.place), self.place)
    }
}

impl<'m, K: Hash + Eq, V> VacantEntry<'m, K, V> {
    /// Makes the entry.
    ///
    /// ```
    /// use sandstorm_api::collections::{Entry, HashMap};
    /// let mut stock = HashMap::new();
    /// let Entry::Vacant(apple) = stock.entry("apple") else { panic!("it is not there") };
    /// *apple.insert(3) += 1;
    /// assert_eq!(stock.get("apple"), Some(&4));
    /// ```
    pub fn insert(self, value: V) -> &'m mut V {
        let place = self.map.add(self.key, value);
        &mut self.map.entries[place].1
    }
}
