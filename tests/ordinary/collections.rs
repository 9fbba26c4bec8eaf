//! Ordinary extensions, one module each: what people do with collections, slices and iterators.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

/// The most frequent words of a record.
pub mod word_count {
    use alloc::collections::BTreeMap;
    use sandstorm_api::prelude::*;

    fn normalize(word: &str) -> String {
        word.chars().filter(|character| character.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    }

    fn count(text: &str) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for word in text.split_whitespace().map(normalize).filter(|word| !word.is_empty()) {
            *counts.entry(word).or_insert(0) += 1;
        }
        counts
    }

    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let table = db.table("texts")?;
        let record = db.get(table, args).await?.ok_or_else(|| Error::invalid("no such text"))?;
        let text = core::str::from_utf8(record.value()).map_err(|_| Error::invalid("not text"))?;
        let mut counts: Vec<(String, usize)> = count(text).into_iter().collect();
        counts.sort_by(|(left, a), (right, b)| b.cmp(a).then_with(|| left.cmp(right)));
        for (word, count) in counts.iter().take(10) {
            db.reply(format!("{count:>6} {word}\n").as_bytes())?;
        }
        Ok(())
    }
}

/// A median and percentiles over numbers.
pub mod statistics {
    use sandstorm_api::prelude::*;

    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Summary {
        pub mean: f64,
        pub median: f64,
        pub spread: f64,
    }

    impl Summary {
        pub fn of(values: &[f64]) -> Option<Self> {
            if values.is_empty() {
                return None;
            }
            let mut sorted = values.to_vec();
            sorted.sort_by(f64::total_cmp);
            let count = sorted.len() as f64;
            let mean = sorted.iter().sum::<f64>() / count;
            let spread = sorted.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / count;
            let middle = sorted.len() / 2;
            let median = if sorted.len() % 2 == 0 { (sorted[middle - 1] + sorted[middle]) / 2.0 } else { sorted[middle] };
            Some(Self { mean, median, spread })
        }
    }

    pub fn percentile(sorted: &[u32], part: u32) -> Option<u32> {
        let index = (sorted.len().checked_sub(1)? * part as usize) / 100;
        sorted.get(index).copied()
    }

    pub fn parse(bytes: &[u8]) -> Result<Vec<f64>, Error> {
        bytes
            .chunks_exact(8)
            .map(|chunk| chunk.try_into().map(f64::from_le_bytes).map_err(|_| Error::invalid("eight bytes each")))
            .collect()
    }
}

/// Moving averages with windows, chunks, zip, scan and rev.
pub mod windows {
    use alloc::vec::Vec;

    pub fn moving(values: &[u64], width: usize) -> Vec<u64> {
        values.windows(width.max(1)).map(|window| window.iter().sum::<u64>() / window.len() as u64).collect()
    }

    pub fn running(values: &[i64]) -> impl Iterator<Item = i64> {
        values.iter().scan(0, |total, value| {
            *total += value;
            Some(*total)
        })
    }

    pub fn distance(left: &[i32], right: &[i32]) -> i64 {
        left.iter().zip(right).map(|(a, b)| i64::from(a - b).pow(2)).sum()
    }

    pub fn is_palindrome<T: PartialEq>(values: &[T]) -> bool {
        values.iter().eq(values.iter().rev())
    }

    pub fn transpose(rows: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let width = rows.first().map_or(0, Vec::len);
        (0..width).map(|column| rows.iter().filter_map(|row| row.get(column).copied()).collect()).collect()
    }

    pub fn positions(haystack: &[u8], needle: &[u8]) -> Vec<usize> {
        haystack.windows(needle.len().max(1)).enumerate().filter(|(_, found)| *found == needle).map(|(at, _)| at).collect()
    }
}

/// Merging of sorted lists by a heap.
pub mod merge {
    use alloc::collections::{BinaryHeap, VecDeque};
    use alloc::vec::Vec;
    use core::cmp::{Ordering, Reverse};

    #[derive(PartialEq, Eq)]
    struct Head {
        value: u64,
        list: usize,
    }

    impl Ord for Head {
        fn cmp(&self, other: &Self) -> Ordering {
            self.value.cmp(&other.value).then(self.list.cmp(&other.list))
        }
    }

    impl PartialOrd for Head {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    pub fn merged(lists: Vec<Vec<u64>>) -> Vec<u64> {
        let mut lists: Vec<VecDeque<u64>> = lists.into_iter().map(VecDeque::from).collect();
        let mut heads = BinaryHeap::new();
        for (list, values) in lists.iter_mut().enumerate() {
            if let Some(value) = values.pop_front() {
                heads.push(Reverse(Head { value, list }));
            }
        }
        let mut out = Vec::new();
        while let Some(Reverse(Head { value, list })) = heads.pop() {
            out.push(value);
            if let Some(next) = lists[list].pop_front() {
                heads.push(Reverse(Head { value: next, list }));
            }
        }
        out
    }
}

/// An LRU list in a vector, with Option combinators.
pub mod recent {
    use alloc::string::String;
    use alloc::vec::Vec;

    #[derive(Default)]
    pub struct Recent {
        entries: Vec<(String, u64)>,
        limit: usize,
    }

    impl Recent {
        pub fn new(limit: usize) -> Self {
            Recent { limit, ..Self::default() }
        }

        pub fn touch(&mut self, name: &str) -> u64 {
            let hits = match self.entries.iter().position(|(known, _)| known == name) {
                Some(index) => self.entries.remove(index).1 + 1,
                None => 1,
            };
            self.entries.insert(0, (name.into(), hits));
            self.entries.truncate(self.limit);
            hits
        }

        pub fn best(&self) -> Option<&str> {
            self.entries.iter().max_by_key(|(_, hits)| *hits).map(|(name, _)| name.as_str())
        }

        pub fn drain_cold(&mut self, below: u64) -> Vec<String> {
            let (cold, warm) = core::mem::take(&mut self.entries).into_iter().partition(|(_, hits)| *hits < below);
            self.entries = warm;
            let cold: Vec<(String, u64)> = cold;
            cold.into_iter().map(|(name, _)| name).collect()
        }
    }
}

/// Binary search and ranges.
pub mod search {
    use alloc::collections::{BTreeMap, BTreeSet};
    use core::ops::{Bound, Range, RangeInclusive};

    pub fn insert_sorted(values: &mut alloc::vec::Vec<u32>, value: u32) -> bool {
        match values.binary_search(&value) {
            Ok(_) => false,
            Err(index) => {
                values.insert(index, value);
                true
            }
        }
    }

    pub fn within<'m>(map: &'m BTreeMap<u64, &str>, range: RangeInclusive<u64>) -> Option<(&'m u64, usize)> {
        map.range(range).next().map(|(key, text)| (key, text.len()))
    }

    pub fn after(set: &BTreeSet<u64>, value: u64) -> Option<u64> {
        set.range((Bound::Excluded(value), Bound::Unbounded)).next().copied()
    }

    pub fn lower_bound<T, F: FnMut(&T) -> bool>(values: &[T], mut below: F) -> usize {
        let Range { mut start, mut end } = 0..values.len();
        while start < end {
            let middle = start + (end - start) / 2;
            if below(&values[middle]) { start = middle + 1 } else { end = middle }
        }
        start
    }
}

/// An iterator adaptor of its own, with a parameter for what it keeps.
pub mod pairs {
    pub struct Pairs<T, I: Iterator<Item = T>> {
        rest: I,
        last: Option<T>,
    }

    impl<T: Clone, I: Iterator<Item = T>> Iterator for Pairs<T, I> {
        type Item = (T, T);

        fn next(&mut self) -> Option<Self::Item> {
            let next = self.rest.next()?;
            match self.last.replace(next.clone()) {
                Some(last) => Some((last, next)),
                None => {
                    let second = self.rest.next()?;
                    self.last = Some(second.clone());
                    Some((next, second))
                }
            }
        }
    }

    pub fn pairs<T: Clone, I: IntoIterator<Item = T>>(items: I) -> Pairs<T, I::IntoIter> {
        Pairs { rest: items.into_iter(), last: None }
    }

    pub fn rises(values: &[u32]) -> usize {
        pairs(values.iter().copied()).filter(|(before, after)| after > before).count()
    }
}

/// Generic helpers as everybody has them.
pub mod helpers {
    use alloc::string::{String, ToString};
    use alloc::vec::Vec;
    use core::fmt::Display;
    use core::hash::{Hash, Hasher};

    pub fn join<T: Display>(items: &[T], between: &str) -> String {
        items.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
    }

    pub fn group_by<T, K, F>(items: &[T], key: F) -> alloc::collections::BTreeMap<K, Vec<&T>>
    where
        K: Ord,
        F: Fn(&T) -> K,
    {
        let mut groups: alloc::collections::BTreeMap<K, Vec<&T>> = Default::default();
        for item in items {
            groups.entry(key(item)).or_default().push(item);
        }
        groups
    }

    pub fn unique<T: Ord + Clone>(mut items: Vec<T>) -> Vec<T> {
        items.sort();
        items.dedup();
        items
    }

    pub fn sorted<I: Iterator>(items: I) -> Vec<I::Item>
    where
        I::Item: Ord,
    {
        let mut items: Vec<I::Item> = items.collect();
        items.sort_unstable();
        items
    }

    pub fn largest_by<I, K>(items: I, key: impl Fn(&I::Item) -> K) -> Option<I::Item>
    where
        I: IntoIterator,
        K: PartialOrd,
    {
        let mut items = items.into_iter();
        let first = items.next()?;
        Some(items.fold(first, |best, next| if key(&next) > key(&best) { next } else { best }))
    }

    pub struct Fnv(u64);

    impl Hasher for Fnv {
        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }

        fn finish(&self) -> u64 {
            self.0
        }
    }

    pub fn hash_of<T: Hash + ?Sized>(value: &T) -> u64 {
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        value.hash(&mut hasher);
        hasher.finish()
    }
}

/// Closures: stored, boxed, composed, counted.
pub mod closures {
    use alloc::boxed::Box;
    use alloc::string::String;
    use alloc::vec::Vec;

    /// Which of two ways to go is known at run time only.
    pub fn bytes<'a>(bytes: &'a [u8], backwards: bool) -> Box<dyn Iterator<Item = u8> + 'a> {
        if backwards { Box::new(bytes.iter().rev().map(|byte| byte + 1)) } else { Box::new(bytes.iter().copied()) }
    }

    pub struct Pipeline<T> {
        steps: Vec<Box<dyn Fn(T) -> T>>,
    }

    impl Pipeline<u64> {
        pub fn standard(offset: u64) -> Self {
            Pipeline { steps: alloc::vec![Box::new(move |value| value + offset), Box::new(|value| value * 2)] }
        }
    }

    impl<T> Pipeline<T> {
        pub fn push(&mut self, step: Box<dyn Fn(T) -> T>) -> &mut Self {
            self.steps.push(step);
            self
        }

        pub fn run(&self, value: T) -> T {
            self.steps.iter().fold(value, |value, step| step(value))
        }
    }

    pub fn memoized(mut compute: impl FnMut(u32) -> u64) -> impl FnMut(u32) -> u64 {
        let mut known = alloc::collections::BTreeMap::new();
        move |key| *known.entry(key).or_insert_with(|| compute(key))
    }

    pub fn adder(by: i32) -> impl Fn(i32) -> i32 {
        move |value| value + by
    }

    pub fn twice<A>(step: impl Fn(A) -> A) -> impl Fn(A) -> A {
        move |value| step(step(value))
    }

    pub fn apply_all(words: &mut [String], change: &dyn Fn(&str) -> String) {
        for word in words {
            *word = change(word);
        }
    }

    pub fn retry<T, E, F>(mut attempts: u32, mut attempt: F) -> Result<T, E>
    where
        F: FnMut() -> Result<T, E>,
    {
        loop {
            match attempt() {
                Err(_) if attempts > 0 => attempts -= 1,
                ended => return ended,
            }
        }
    }
}
