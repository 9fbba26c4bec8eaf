//! Ordinary extensions, one module each: what traits of one's own, closures and functions as values are used for.
#![no_std]
#![forbid(unsafe_code)]
#![allow(dead_code, clippy::all)]

extern crate alloc;

/// Records that are read from and written to bytes.
pub mod records {
    use sandstorm_api::prelude::*;

    pub type Result<T> = core::result::Result<T, Error>;

    pub trait Stored: Sized + Clone {
        const TABLE: &'static str;
        fn decode(bytes: &[u8]) -> Option<Self>;
        fn try_decode(bytes: &[u8]) -> Result<Self>;
        fn encode(&self) -> Vec<u8>;
        fn name(&self) -> &str;
        fn fields(&self) -> Vec<&str>;
        fn parent(&self) -> Option<&Self>;
        fn merged(self, other: Self) -> Self;
        fn merge(&mut self, other: &Self) -> bool;
        fn both(self, other: Option<Self>) -> Vec<Self>;
        fn pair(self) -> (Self, u64);
        fn newest(all: Vec<Self>) -> Option<Self>;
        fn many(bytes: &[&[u8]]) -> Result<Vec<Self>> {
            bytes.iter().map(|bytes| Self::try_decode(bytes)).collect()
        }
        fn fold_in(&mut self, others: impl Iterator<Item = Self>) -> &mut Self {
            others.for_each(|other| {
                self.merge(&other);
            });
            self
        }
        async fn load(db: Db<'_>, key: &[u8]) -> Result<Option<Self>> {
            let found = db.get(db.table(Self::TABLE)?, key).await?;
            Ok(found.and_then(|found| Self::decode(found.value())))
        }
    }

    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct Note {
        text: String,
        parent: Option<Box<Note>>,
    }

    impl Stored for Note {
        const TABLE: &'static str = "t";
        fn decode(bytes: &[u8]) -> Option<Self> {
            Some(Note { text: core::str::from_utf8(bytes).ok()?.to_owned(), parent: None })
        }
        fn try_decode(bytes: &[u8]) -> Result<Note> {
            Note::decode(bytes).ok_or_else(|| Error::invalid("no text"))
        }
        fn encode(&self) -> Vec<u8> {
            self.text.clone().into_bytes()
        }
        fn name(&self) -> &str {
            &self.text
        }
        fn fields(&self) -> Vec<&str> {
            self.text.split(' ').collect()
        }
        fn parent(&self) -> Option<&Note> {
            self.parent.as_deref()
        }
        fn merged(mut self, other: Note) -> Note {
            self.text.push_str(&other.text);
            self
        }
        fn merge(&mut self, other: &Note) -> bool {
            self.text.push_str(&other.text);
            true
        }
        fn both(self, other: Option<Note>) -> Vec<Note> {
            [Some(self), other].into_iter().flatten().collect()
        }
        fn pair(self) -> (Note, u64) {
            let length = self.text.len() as u64;
            (self, length)
        }
        fn newest(mut all: Vec<Note>) -> Option<Note> {
            all.pop()
        }
    }
}

/// Methods for all iterators of some kind, and adapters of one's own.
pub mod adapters {
    use sandstorm_api::prelude::*;

    pub struct Pairs<T, I> {
        inside: I,
        last: Option<T>,
    }

    impl<T: Clone, I: Iterator<Item = T>> Iterator for Pairs<T, I> {
        type Item = (T, T);
        fn next(&mut self) -> Option<(T, T)> {
            let next = self.inside.next()?;
            let before = self.last.replace(next.clone())?;
            Some((before, next))
        }
    }

    pub struct Every<I> {
        inside: I,
        step: usize,
    }

    impl<'a, I: Iterator<Item = &'a str>> Iterator for Every<I> {
        type Item = &'a str;
        fn next(&mut self) -> Option<&'a str> {
            self.inside.nth(self.step)
        }
    }

    pub trait Steps: Sized {
        fn every(self, step: usize) -> Every<Self>;
        fn each(self, look: impl FnMut(&Self) -> bool) -> Option<Every<Self>>;
    }

    impl Steps for core::str::Lines<'_> {
        fn every(self, step: usize) -> Every<Self> {
            Every { inside: self, step }
        }
        fn each(self, mut look: impl FnMut(&Self) -> bool) -> Option<Every<Self>> {
            look(&self).then(|| Every { inside: self, step: 0 })
        }
    }

    pub fn longest<I: Iterator>(items: I) -> Option<I::Item>
    where
        I::Item: AsRef<str> + Clone,
    {
        items.max_by_key(|item| item.as_ref().len())
    }

    pub fn total<I: IntoIterator<Item: Into<u64>>>(items: I) -> u64 {
        items.into_iter().map(Into::into).sum()
    }

    pub fn first_by<I: Iterator, K: Ord>(items: I, key: impl Fn(&I::Item) -> K) -> Option<I::Item> {
        items.min_by_key(|item| key(item))
    }

    pub fn count_of<I: Iterator>(items: I, is: impl Fn(Option<&I::Item>) -> bool) -> usize {
        items.filter(|item| is(Some(item))).count()
    }

    pub fn words(text: &str) -> (usize, Option<char>) {
        let mut words = text.lines().map(str::trim).peekable();
        let long = words.next_if(|word| word.len() > 3).map_or(0, str::len);
        let mut lengths = text.split(' ').map(str::len).peekable();
        let letters = text.lines().map(str::chars).flatten().next();
        (long + lengths.peek().copied().unwrap_or_default(), letters)
    }
}

/// Closures that say what they give, and functions as values.
pub mod closures {
    use sandstorm_api::prelude::*;

    pub struct Rule<T> {
        name: String,
        holds: Box<dyn Fn(u64) -> bool>,
        value: T,
    }

    impl<T: Clone + PartialOrd> Rule<T> {
        pub fn above(&self, others: &[T]) -> Vec<T> {
            let keep = |other: &T| -> bool { *other > self.value };
            let copied = |other: &T| -> Option<T> { keep(other).then(|| other.clone()) };
            others.iter().filter_map(copied).collect()
        }
        pub fn named(&self) -> Result<T, Error> {
            let checked = |name: &str| -> Result<T, Error> {
                if name.is_empty() { Err(Error::invalid("no name")) } else { Ok(self.value.clone()) }
            };
            checked(&self.name)
        }
    }

    pub fn rules() -> Vec<Rule<u64>> {
        let holds: [Box<dyn Fn(u64) -> bool>; 2] = [Box::new(u64::is_power_of_two), Box::new(|x| x > 3)];
        holds.into_iter().map(|holds| Rule { name: String::new(), holds, value: 1 }).collect()
    }

    pub fn shown(text: &str) -> Vec<&str> {
        let mut found = Vec::new();
        let mut take = |part: &'static str| -> &'static str { part };
        found.push(take("head"));
        let trimmed = |part: &str| -> String { part.trim().to_owned() };
        found.extend(text.split(',').filter(|part| !trimmed(part).is_empty()));
        found
    }

    pub fn joined(parts: &[String], between: impl Fn() -> char + Clone) -> String {
        parts.iter().fold(String::new(), |mut text, part| {
            text.push(between());
            text.push_str(part);
            text
        })
    }
}
