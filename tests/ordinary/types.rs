//! Ordinary extensions, one module each: types, traits, operators and errors.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

/// Vectors with operators.
pub mod vectors {
    use core::iter::Sum;
    use core::ops::{Add, AddAssign, Index, IndexMut, Mul, Neg, Not, Sub};

    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    pub struct Pair {
        pub x: f64,
        pub y: f64,
    }

    impl Add for Pair {
        type Output = Self;
        fn add(self, other: Self) -> Self {
            Pair { x: self.x + other.x, y: self.y + other.y }
        }
    }

    impl Sub for Pair {
        type Output = Self;
        fn sub(self, other: Self) -> Self::Output {
            self + -other
        }
    }

    impl Neg for Pair {
        type Output = Self;
        fn neg(self) -> Self {
            Pair { x: -self.x, y: -self.y }
        }
    }

    impl Mul<f64> for Pair {
        type Output = Pair;
        fn mul(self, by: f64) -> Pair {
            Pair { x: self.x * by, y: self.y * by }
        }
    }

    impl AddAssign for Pair {
        fn add_assign(&mut self, other: Self) {
            *self = *self + other;
        }
    }

    impl Sum for Pair {
        fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
            items.fold(Self::default(), Add::add)
        }
    }

    pub struct Grid<T> {
        width: usize,
        cells: alloc::vec::Vec<T>,
    }

    impl<T: Clone + Default> Grid<T> {
        pub fn new(width: usize, height: usize) -> Self {
            Grid { width, cells: alloc::vec![T::default(); width * height] }
        }

        pub fn rows(&self) -> impl Iterator<Item = &[T]> {
            self.cells.chunks(self.width)
        }
    }

    impl<T> Index<(usize, usize)> for Grid<T> {
        type Output = T;
        fn index(&self, (x, y): (usize, usize)) -> &Self::Output {
            &self.cells[y * self.width + x]
        }
    }

    impl<T> IndexMut<(usize, usize)> for Grid<T> {
        fn index_mut(&mut self, (x, y): (usize, usize)) -> &mut Self::Output {
            &mut self.cells[y * self.width + x]
        }
    }

    #[derive(Clone, Copy, PartialEq, Eq)]
    pub enum Switch {
        On,
        Off,
    }

    impl Not for Switch {
        type Output = Switch;
        fn not(self) -> Switch {
            if self == Switch::On { Switch::Off } else { Switch::On }
        }
    }
}

/// An error enum with `?`, `From` and `Display`.
pub mod errors {
    use alloc::string::String;
    use core::fmt;
    use core::num::ParseIntError;
    use core::str::{FromStr, Utf8Error};
    use sandstorm_api::{Db, Error};

    #[derive(Debug, Clone, PartialEq)]
    pub enum Trouble {
        NotText,
        NotANumber { text: String },
        OutOfRange(u64),
    }

    impl fmt::Display for Trouble {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Self::NotText => f.write_str("not text"),
                Self::NotANumber { text } => write!(f, "{text:?} is not a number"),
                Self::OutOfRange(value) => write!(f, "{value} is out of range"),
            }
        }
    }

    impl core::error::Error for Trouble {}

    impl From<Utf8Error> for Trouble {
        fn from(_: Utf8Error) -> Self {
            Trouble::NotText
        }
    }

    impl From<ParseIntError> for Trouble {
        fn from(error: ParseIntError) -> Self {
            use alloc::string::ToString;
            Trouble::NotANumber { text: error.to_string() }
        }
    }

    impl From<Trouble> for Error {
        fn from(trouble: Trouble) -> Self {
            use alloc::string::ToString;
            Error::invalid(trouble.to_string())
        }
    }

    #[derive(Debug, PartialEq)]
    pub struct Age(u8);

    impl FromStr for Age {
        type Err = Trouble;
        fn from_str(text: &str) -> Result<Self, Self::Err> {
            let value: u64 = text.trim().parse()?;
            u8::try_from(value).map(Age).map_err(|_| Trouble::OutOfRange(value))
        }
    }

    impl TryFrom<&[u8]> for Age {
        type Error = Trouble;
        fn try_from(bytes: &[u8]) -> Result<Self, Trouble> {
            core::str::from_utf8(bytes)?.parse()
        }
    }

    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let Age(age) = Age::try_from(args)?;
        db.reply(&[age])
    }
}

/// Traits with generic methods, defaults, constants and supertraits.
pub mod shapes {
    use alloc::string::String;
    use alloc::vec::Vec;
    use core::fmt::Debug;

    pub trait Named {
        const KIND: &'static str;
        fn name(&self) -> String {
            Self::KIND.into()
        }
    }

    pub trait Visitor {
        fn number(&mut self, value: f64);
        fn text(&mut self, value: &str);
    }

    pub trait Shape: Named + Debug {
        fn area(&self) -> f64;
        fn visit<V: Visitor>(&self, visitor: &mut V) {
            visitor.text(Self::KIND);
            visitor.number(self.area());
        }
        fn larger<S: Shape>(&self, other: &S) -> bool {
            self.area() > other.area()
        }
    }

    #[derive(Debug, Clone, Copy)]
    pub struct Square(pub f64);
    #[derive(Debug, Clone, Copy)]
    pub struct Circle {
        pub radius: f64,
    }

    impl Named for Square {
        const KIND: &'static str = "square";
    }
    impl Named for Circle {
        const KIND: &'static str = "circle";
        fn name(&self) -> String {
            alloc::format!("{} of {:.1}", Self::KIND, self.radius)
        }
    }
    impl Shape for Square {
        fn area(&self) -> f64 {
            self.0 * self.0
        }
    }
    impl Shape for Circle {
        fn area(&self) -> f64 {
            core::f64::consts::PI * self.radius * self.radius
        }
    }

    #[derive(Default, Debug)]
    pub struct Collect {
        numbers: Vec<f64>,
        texts: Vec<String>,
    }

    impl Visitor for Collect {
        fn number(&mut self, value: f64) {
            self.numbers.push(value);
        }
        fn text(&mut self, value: &str) {
            self.texts.push(value.into());
        }
    }

    pub fn total(squares: &[Square], circles: &[Circle]) -> f64 {
        let mut all = Collect::default();
        squares.iter().for_each(|shape| shape.visit(&mut all));
        circles.iter().for_each(|shape| shape.visit(&mut all));
        all.numbers.iter().sum()
    }
}

/// Lifetimes in structs and PhantomData.
pub mod views {
    use core::marker::PhantomData;
    use sandstorm_api::prelude::*;

    #[derive(Clone, Copy, Debug)]
    pub struct View<'a> {
        bytes: &'a [u8],
    }

    impl<'a> View<'a> {
        pub fn new(bytes: &'a [u8]) -> Self {
            View { bytes }
        }

        pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
            let (head, tail) = self.bytes.split_at_checked(count)?;
            self.bytes = tail;
            Some(head)
        }

        pub fn number(&mut self) -> Option<u32> {
            self.take(4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes)
        }

        pub fn text(&mut self) -> Option<&'a str> {
            let len = self.number()?;
            core::str::from_utf8(self.take(len as usize)?).ok()
        }
    }

    pub struct Id<T> {
        value: u64,
        of: PhantomData<T>,
    }

    impl<T> Clone for Id<T> {
        fn clone(&self) -> Self {
            *self
        }
    }
    impl<T> Copy for Id<T> {}
    impl<T> PartialEq for Id<T> {
        fn eq(&self, other: &Self) -> bool {
            self.value == other.value
        }
    }

    pub struct User<'r> {
        pub id: Id<User<'r>>,
        pub name: &'r str,
        pub tags: Vec<&'r str>,
    }

    pub fn user<'r>(record: &Record<'r>) -> Option<User<'r>> {
        let mut view = View::new(record.value());
        let id = Id { value: u64::from(view.number()?), of: PhantomData };
        let name = view.text()?;
        let mut tags = Vec::new();
        while let Some(tag) = view.text() {
            tags.push(tag);
        }
        Some(User { id, name, tags })
    }

    pub fn longest<'t>(first: &'t str, second: &'t str) -> &'t str {
        if second.len() > first.len() { second } else { first }
    }
}

/// A state machine with match guards and bindings.
pub mod machine {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[repr(u8)]
    pub enum State {
        Idle = 0,
        Running { since: u32, retries: u8 },
        Done(Outcome),
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[non_exhaustive]
    pub enum Outcome {
        Good,
        Bad,
    }

    pub enum Event {
        Start(u32),
        Tick(u32),
        Fail,
        Finish,
    }

    impl State {
        const LIMIT: u8 = 3;

        #[must_use]
        pub fn next(self, event: &Event) -> State {
            match (self, event) {
                (State::Idle, Event::Start(now)) => State::Running { since: *now, retries: 0 },
                (State::Running { since, .. }, Event::Tick(now)) if now.saturating_sub(since) > 1_000 => {
                    State::Done(Outcome::Bad)
                }
                (State::Running { retries: Self::LIMIT.., .. }, Event::Fail) => State::Done(Outcome::Bad),
                (State::Running { retries, .. }, Event::Fail) => State::Running { since: 0, retries: retries + 1 },
                (State::Running { .. }, Event::Finish) => State::Done(Outcome::Good),
                (state @ (State::Done(_) | State::Idle | State::Running { .. }), _) => state,
            }
        }
    }

    pub fn classify(bytes: &[u8]) -> &'static str {
        match bytes {
            [] => "nothing",
            [b'#', ..] => "comment",
            [b'0'..=b'9' | b'-', rest @ ..] if rest.iter().all(u8::is_ascii_digit) => "number",
            [first, .., last] if first == last && matches!(first, b'"' | b'\'') => "quoted",
            _ => "word",
        }
    }
}

/// Boxed trees and recursion.
pub mod tree {
    use alloc::boxed::Box;
    use alloc::vec::Vec;
    use core::cmp::Ordering;
    use core::fmt;

    #[derive(Debug, Clone)]
    pub struct Tree<K, V> {
        root: Option<Box<Node<K, V>>>,
        len: usize,
    }

    #[derive(Debug, Clone)]
    struct Node<K, V> {
        key: K,
        value: V,
        left: Option<Box<Node<K, V>>>,
        right: Option<Box<Node<K, V>>>,
    }

    impl<K, V> Default for Tree<K, V> {
        fn default() -> Self {
            Tree { root: None, len: 0 }
        }
    }

    impl<K: Ord, V> Tree<K, V> {
        pub fn insert(&mut self, key: K, value: V) -> Option<V> {
            let mut at = &mut self.root;
            while let Some(node) = at {
                match key.cmp(&node.key) {
                    Ordering::Less => at = &mut node.left,
                    Ordering::Greater => at = &mut node.right,
                    Ordering::Equal => return Some(core::mem::replace(&mut node.value, value)),
                }
            }
            *at = Some(Box::new(Node { key, value, left: None, right: None }));
            self.len += 1;
            None
        }

        pub fn get(&self, key: &K) -> Option<&V> {
            let mut at = self.root.as_deref();
            while let Some(node) = at {
                at = match key.cmp(&node.key) {
                    Ordering::Less => node.left.as_deref(),
                    Ordering::Greater => node.right.as_deref(),
                    Ordering::Equal => return Some(&node.value),
                };
            }
            None
        }

        pub fn walk<F: FnMut(&K, &V)>(&self, mut each: F) {
            fn go<K, V>(node: Option<&Node<K, V>>, each: &mut impl FnMut(&K, &V)) {
                if let Some(node) = node {
                    go(node.left.as_deref(), each);
                    each(&node.key, &node.value);
                    go(node.right.as_deref(), each);
                }
            }
            go(self.root.as_deref(), &mut each);
        }
    }

    impl<K: Ord, V> FromIterator<(K, V)> for Tree<K, V> {
        fn from_iter<I: IntoIterator<Item = (K, V)>>(items: I) -> Self {
            let mut tree = Tree::default();
            tree.extend(items);
            tree
        }
    }

    impl<K: Ord, V> Extend<(K, V)> for Tree<K, V> {
        fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, items: I) {
            items.into_iter().for_each(|(key, value)| {
                self.insert(key, value);
            });
        }
    }

    impl<K: Ord + fmt::Display, V> fmt::Display for Tree<K, V> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let mut keys = Vec::new();
            self.walk(|key, _| keys.push(alloc::format!("{key}")));
            f.debug_list().entries(&keys).finish()
        }
    }
}

/// A small expression language: tokens, a parser with Peekable, an evaluator.
pub mod calculator {
    use alloc::boxed::Box;
    use core::iter::Peekable;
    use core::str::Chars;
    use sandstorm_api::prelude::*;

    #[derive(Debug)]
    enum Expression {
        Number(i64),
        Binary { left: Box<Expression>, operator: char, right: Box<Expression> },
    }

    struct Parser<'t> {
        rest: Peekable<Chars<'t>>,
    }

    type Parsed<T> = Result<T, Error>;

    impl<'t> Parser<'t> {
        fn new(text: &'t str) -> Self {
            Parser { rest: text.chars().peekable() }
        }

        fn sum(&mut self) -> Parsed<Expression> {
            let mut left = self.product()?;
            while let Some(operator) = self.rest.next_if(|next| matches!(next, '+' | '-')) {
                let right = self.product()?;
                left = Expression::Binary { left: Box::new(left), operator, right: Box::new(right) };
            }
            Ok(left)
        }

        fn product(&mut self) -> Parsed<Expression> {
            let mut left = self.number()?;
            while let Some(operator) = self.rest.next_if(|next| *next == '*') {
                left = Expression::Binary { left: Box::new(left), operator, right: Box::new(self.number()?) };
            }
            Ok(left)
        }

        fn number(&mut self) -> Parsed<Expression> {
            if self.rest.next_if_eq(&'(').is_some() {
                let inside = self.sum()?;
                return match self.rest.next() {
                    Some(')') => Ok(inside),
                    other => Err(Error::invalid(format!("expected `)`, found {other:?}"))),
                };
            }
            let mut value = None;
            while let Some(digit) = self.rest.peek().and_then(|next| next.to_digit(10)) {
                self.rest.next();
                value = Some(value.unwrap_or(0) * 10 + i64::from(digit));
            }
            value.map(Expression::Number).ok_or_else(|| Error::invalid("a number was expected"))
        }
    }

    impl Expression {
        fn value(&self) -> Option<i64> {
            Some(match self {
                Expression::Number(value) => *value,
                Expression::Binary { left, operator, right } => {
                    let (left, right) = (left.value()?, right.value()?);
                    match operator {
                        '+' => left.checked_add(right)?,
                        '-' => left.checked_sub(right)?,
                        '*' => left.checked_mul(right)?,
                        _ => unreachable!("operator {operator}"),
                    }
                }
            })
        }
    }

    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let text = core::str::from_utf8(args).map_err(|_| Error::invalid("text"))?;
        let value = Parser::new(text).sum()?.value().ok_or(Error::invalid("overflow"))?;
        db.reply(value.to_string().as_bytes())
    }
}
