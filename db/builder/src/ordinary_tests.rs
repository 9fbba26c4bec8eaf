//! Tests that ordinary extensions pass the checker and compile without a warning that the builder causes.

use sandstorm_net::CodeTier;

use super::tests::{job, ordinary, source, toolchain};
use super::{check, compile};

const ORDINARY: &str = r##"//! A bit of everything.
#![no_std]
#![forbid(unsafe_code)]
#![allow(dead_code)]
extern crate alloc;

use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use core::cmp::{Ordering, Reverse};
use core::fmt::{self, Display, Write as _};
use core::future::Future;
use core::ops::{Add, Deref, Index};
use core::pin::Pin;
use sandstorm_api::prelude::*;
use sandstorm_api::{Cursor, Record as Row};

const LIMITS: [u32; 3] = [1, 2, 3];
const NAME: &str = "ordinary";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    #[default]
    Leaf = 1,
    Node,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Point<T, const N: usize> {
    at: [T; N],
}

impl<T: Copy + Add<Output = T> + Default, const N: usize> Point<T, N> {
    pub fn sum(&self) -> T {
        self.at.iter().copied().fold(T::default(), |total, next| total + next)
    }
}

impl<T, const N: usize> Index<usize> for Point<T, N> {
    type Output = T;
    fn index(&self, index: usize) -> &T {
        &self.at[index]
    }
}

/// Words of a text.
pub struct Words<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;
    fn next(&mut self) -> Option<&'a str> {
        let trimmed = self.rest.trim_start();
        if trimmed.is_empty() {
            return None;
        }
        let (word, rest) = trimmed.split_once(' ').unwrap_or((trimmed, ""));
        self.rest = rest;
        Some(word)
    }
}

pub trait Shape {
    const SIDES: u32;
    fn area(&self) -> f64;
    fn describe(&self) -> String {
        format!("{} sides, {:.2}", Self::SIDES, self.area())
    }
}

pub struct Square(f64);

impl Shape for Square {
    const SIDES: u32 = 4;
    fn area(&self) -> f64 {
        self.0 * self.0
    }
}

impl Display for Square {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "square of {}", self.0)
    }
}

impl From<f64> for Square {
    fn from(side: f64) -> Square {
        Square(side)
    }
}

struct Guard<'a>(&'a Cell<u32>);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

struct Owned(Vec<u8>);

impl Deref for Owned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

mod parse {
    use super::*;

    pub(super) fn number(text: &str) -> Result<u64, Error> {
        text.trim().parse().map_err(|_| Error::invalid("not a number"))
    }

    pub(crate) fn pair<'a>(text: &'a str, separator: char) -> Option<(&'a str, &'a str)> {
        text.split_once(separator)
    }
}

fn apply<T, R>(values: &[T], mut action: impl FnMut(&T) -> R) -> Vec<R> {
    values.iter().map(|value| action(value)).collect()
}

fn compose<A, B, C>(first: impl Fn(A) -> B, second: impl Fn(B) -> C) -> impl Fn(A) -> C {
    move |value| second(first(value))
}

fn boxed(step: u64) -> Box<dyn Fn(u64) -> u64> {
    Box::new(move |value| value + step)
}

fn evens<'a>(values: &'a [u64]) -> impl Iterator<Item = u64> + 'a {
    values.iter().copied().filter(|value| value % 2 == 0)
}

fn largest<T>(values: &[T]) -> Option<&T>
where
    T: PartialOrd,
{
    let mut values = values.iter();
    let first = values.next()?;
    Some(values.fold(first, |best, next| if next > best { next } else { best }))
}

fn deep<'a>(db: Db<'a>, table: TableId, depth: u32) -> Pin<Box<dyn Future<Output = Result<u64, Error>> + 'a>> {
    Box::pin(async move {
        if depth == 0 {
            return Ok(0);
        }
        let key = depth.to_le_bytes();
        let found = db.get(table, &key).await?.map_or(0, |record| record.version());
        Ok(found + deep(db, table, depth - 1).await?)
    })
}

fn shortest(edges: &BTreeMap<u32, Vec<(u32, u64)>>, from: u32, to: u32) -> Option<u64> {
    let mut best: BTreeMap<u32, u64> = BTreeMap::new();
    let mut waiting = BinaryHeap::from([(Reverse(0_u64), from)]);
    'search: while let Some((Reverse(cost), at)) = waiting.pop() {
        if at == to {
            return Some(cost);
        }
        match best.get(&at).map(|known| known.cmp(&cost)) {
            Some(Ordering::Less | Ordering::Equal) => continue 'search,
            Some(Ordering::Greater) | None => {}
        }
        best.insert(at, cost);
        for &(next, weight) in edges.get(&at).map(Vec::as_slice).unwrap_or_default() {
            waiting.push((Reverse(cost + weight), next));
        }
    }
    None
}

fn first_of(bytes: &[u8]) -> u32 {
    match bytes {
        [] => 0,
        [one] => u32::from(*one),
        [first, .., last] if first == last => 1,
        [first @ 1..=9, rest @ ..] => u32::from(*first) + rest.len() as u32,
        _ => u32::MAX,
    }
}

/// The entry.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let text = core::str::from_utf8(args).map_err(|_| Error::invalid("args: text"))?;
    let Some((name, rest)) = parse::pair(text, ':') else {
        return Err(Error::invalid("args: name:rest"));
    };
    let table = db.table(name)?;
    let counted = Cell::new(0);
    let shared = Rc::new(RefCell::new(Vec::new()));
    {
        let _guard = Guard(&counted);
        for word in (Words { rest }) {
            shared.borrow_mut().push(word.to_owned());
        }
    }
    let keys: Vec<&[u8]> = rest.split(',').map(str::as_bytes).collect();
    let records: Vec<Option<Row<'_>>> = db.get_many(table, &keys).await?;
    let total: u64 = records.iter().flatten().map(|record| record.value().len() as u64).sum();
    let mut cursor = Some(Cursor::default());
    while let Some(at) = cursor {
        let page = db.scan(table, at, 100)?;
        cursor = page.next;
        yield_now().await;
    }
    let plan = compose(boxed(3), |value: u64| value * 2);
    let mut out = String::with_capacity(64);
    writeln!(out, "{total:>8} {name:?} {0} {kind:?}", plan(1), kind = Kind::default()).map_err(|_| Error::new("format"))?;
    out.push_str(&Square::from(1.5).describe());
    let point = Point { at: [1_u64, 2, 3] };
    debug_assert!(matches!(point.sum(), 6 | 7 if point[0] == 1), "sum {}", point.sum());
    assert_eq!(apply(&LIMITS, |limit| limit + 1), vec![2, 3, 4]);
    let zeros = vec![0_u8; 16];
    let length = if let Some(best) = largest(&zeros) && *best == 0 { deep(db, table, 2).await? } else { unreachable!() };
    let graph = BTreeMap::from([(1, vec![(2, 5)])]);
    let found = shortest(&graph, 1, 2).unwrap_or(length) + parse::number("7")? + u64::from(first_of(&Owned(zeros)));
    db.put(table, b"last", &found.to_le_bytes()).if_absent().expires_in_ms(1_000).await?;
    db.reply(out.as_bytes())
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashMap;

    #[test]
    #[should_panic(expected = "no")]
    fn it_panics() {
        static SEEN: std::sync::Mutex<u8> = std::sync::Mutex::new(1);
        let map: HashMap<u8, u8> = HashMap::new();
        std::println!("{map:?} {:?} {}", SEEN, evens(&[1, 2]).count());
        panic!("no")
    }
}
"##;

/// Modules in `tests/ordinary`, each as large as a small extension.
const LEAST_MODULES: usize = 30;

/// One run of the compiler for each file.
#[test]
fn ordinary_extensions_pass_and_compile() {
    let mut modules = 0;
    for (path, source) in ordinary() {
        let text = &source.files[0].text;
        modules += text.lines().filter(|line| line.starts_with("pub mod ")).count();
        check(&source, &[], CodeTier::Native).unwrap_or_else(|error| panic!("{path}: {error}"));
        compile(toolchain(), &source, &job()).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    assert!(modules >= LEAST_MODULES, "{modules} modules: the corpus has shrunk");
}

#[test]
fn ordinary_rust_passes_and_compiles() {
    let source = source(ORDINARY);
    check(&source, &[], CodeTier::Native).unwrap_or_else(|error| panic!("{error}"));
    compile(toolchain(), &source, &job()).unwrap_or_else(|error| panic!("{error}"));
}
