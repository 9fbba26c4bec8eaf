//! Ordinary extensions, one module each: numbers, grids and generic code.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

/// A matrix with operators, and a grid walked in all directions.
pub mod grids {
    use core::ops::{Add, AddAssign, Index, IndexMut, Mul, Neg, Sub};
    use sandstorm_api::prelude::*;

    #[derive(Debug, Clone, PartialEq)]
    pub struct Matrix<const R: usize, const C: usize> {
        cells: [[f64; C]; R],
    }
    impl<const R: usize, const C: usize> Default for Matrix<R, C> {
        fn default() -> Self {
            Self { cells: [[0.0; C]; R] }
        }
    }
    impl<const R: usize, const C: usize> Index<(usize, usize)> for Matrix<R, C> {
        type Output = f64;
        fn index(&self, (r, c): (usize, usize)) -> &f64 {
            &self.cells[r][c]
        }
    }
    impl<const R: usize, const C: usize> IndexMut<(usize, usize)> for Matrix<R, C> {
        fn index_mut(&mut self, (r, c): (usize, usize)) -> &mut f64 {
            &mut self.cells[r][c]
        }
    }
    impl<const R: usize, const N: usize, const C: usize> Mul<&Matrix<N, C>> for &Matrix<R, N> {
        type Output = Matrix<R, C>;
        fn mul(self, right: &Matrix<N, C>) -> Matrix<R, C> {
            let mut out = Matrix::default();
            for r in 0..R {
                for c in 0..C {
                    out[(r, c)] = (0..N).map(|n| self[(r, n)] * right[(n, c)]).sum();
                }
            }
            out
        }
    }
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
    pub struct Point {
        x: i32,
        y: i32,
    }
    impl Add for Point {
        type Output = Point;
        fn add(self, other: Point) -> Point {
            Point { x: self.x + other.x, y: self.y + other.y }
        }
    }
    impl Sub for Point {
        type Output = Point;
        fn sub(self, other: Point) -> Point {
            self + -other
        }
    }
    impl Neg for Point {
        type Output = Point;
        fn neg(self) -> Point {
            Point { x: -self.x, y: -self.y }
        }
    }
    impl AddAssign for Point {
        fn add_assign(&mut self, other: Point) {
            *self = *self + other;
        }
    }
    impl Mul<i32> for Point {
        type Output = Point;
        fn mul(self, by: i32) -> Point {
            Point { x: self.x * by, y: self.y * by }
        }
    }
    #[derive(Clone, Copy)]
    pub enum Turn {
        Left,
        Right,
        Stay,
    }
    pub fn life(grid: &[[bool; 8]; 8]) -> [[bool; 8]; 8] {
        let mut next = [[false; 8]; 8];
        for (y, row) in grid.iter().enumerate() {
            for (x, &alive) in row.iter().enumerate() {
                let around = [-1i32, 0, 1]
                    .iter()
                    .flat_map(|dy| [-1i32, 0, 1].iter().map(move |dx| (*dx, *dy)))
                    .filter(|&(dx, dy)| (dx, dy) != (0, 0))
                    .filter(|&(dx, dy)| {
                        grid[(y as i32 + dy).rem_euclid(8) as usize][(x as i32 + dx).rem_euclid(8) as usize]
                    })
                    .count();
                next[y][if x == 0 { 0 } else { x }] = matches!((alive, around), (true, 2 | 3) | (false, 3));
            }
        }
        next
    }
    pub fn step(rows: &mut [Vec<u8>], at: usize, turn: Turn) -> u8 {
        rows[at][match turn {
            Turn::Left => 0,
            Turn::Right => 2,
            Turn::Stay => {
                let middle = 1;
                middle
            }
        }] += 1;
        let mut table = [[0u8; 4]; 4];
        table[at % 4][{
            let (a, b) = (at / 4, at % 4);
            (a + b) % 4
        }] = 7;
        table[at % 4][rows.iter().map(Vec::len).max().unwrap_or(0) % 4]
    }
    pub fn halves() -> (String, String) {
        let mut parts = [String::new(), String::new()];
        for at in 0..4 {
            parts[at % 2].push(if at < 2 { 'a' } else { 'b' });
        }
        let [left, right] = parts;
        (left, right)
    }
    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let (left, right) = halves();
        let [a, b, ..] = args else { return Err("two bytes at least".into()) };
        let mut m = Matrix::<2, 2>::default();
        m[(0, 0)] = f64::from(*a);
        m[(1, 1)] = f64::from(*b);
        let product = &m * &m;
        let at = Point { x: 1, y: 2 } * 3 - Point::default();
        let n = life(&[[true; 8]; 8]).iter().flatten().filter(|alive| **alive).count();
        db.reply(format!("{product:?} {at:?} {n} {left}{right}").as_bytes())
    }
}

/// Sorting, searching, small statistics, bits.
pub mod numbers {
    use alloc::collections::BTreeMap;
    use core::ops::{ControlFlow, RangeInclusive};
    use sandstorm_api::prelude::*;
    pub fn quick<T: PartialOrd + Copy>(items: &mut [T]) {
        let [first, rest @ ..] = items else { return };
        if rest.is_empty() {
            return;
        }
        let pivot = *first;
        let mut edge = 0;
        for at in 1..items.len() {
            if items[at] < pivot {
                edge += 1;
                items.swap(at, edge);
            }
        }
        items.swap(0, edge);
        let (left, right) = items.split_at_mut(edge);
        quick(left);
        quick(&mut right[1..]);
    }
    pub fn histogram<const N: usize>(values: impl IntoIterator<Item = f64>, range: RangeInclusive<f64>) -> [usize; N] {
        let (low, high) = (*range.start(), *range.end());
        let mut bins = [0; N];
        for value in values.into_iter().filter(|v| range.contains(v)) {
            bins[(((value - low) / (high - low) * N as f64) as usize).min(N - 1)] += 1;
        }
        bins
    }
    pub fn sieve(limit: usize) -> impl Iterator<Item = usize> {
        let mut composite = vec![false; limit + 1];
        for n in 2..=limit {
            if !composite[n] {
                (n * n..=limit).step_by(n).for_each(|m| composite[m] = true);
            }
        }
        (2..=limit).filter(move |n| !composite[*n])
    }
    pub fn moving(values: &[f64], width: usize) -> Vec<f64> {
        values.windows(width).map(|w| w.iter().sum::<f64>() / w.len() as f64).collect()
    }
    pub fn checksum(bytes: &[u8]) -> u32 {
        bytes
            .chunks(4)
            .map(|c| c.iter().rev().fold(0u32, |a, b| a << 8 | u32::from(*b)))
            .fold(0x811c_9dc5, |h, w| (h ^ w).wrapping_mul(0x0100_0193).rotate_left(5))
    }
    pub fn first_big(values: &[u64]) -> Option<u64> {
        match values.iter().try_for_each(|v| if *v > 100 { ControlFlow::Break(*v) } else { ControlFlow::Continue(()) })
        {
            ControlFlow::Break(v) => Some(v),
            ControlFlow::Continue(()) => None,
        }
    }
    pub fn memo() -> impl FnMut(u64) -> u64 {
        let mut known = BTreeMap::new();
        move |n| *known.entry(n).or_insert_with(|| (1..=n).product())
    }
    pub fn table() -> [(&'static str, Box<dyn Fn(f64, f64) -> f64>); 3] {
        [("+", Box::new(|a, b| a + b)), ("*", Box::new(|a, b| a * b)), ("max", Box::new(f64::max))]
    }
    pub fn gcd<T>(a: T, b: T) -> T
    where
        T: Copy + PartialEq + Default + core::ops::Rem<Output = T>,
    {
        if b == T::default() { a } else { gcd(b, a % b) }
    }
    pub fn transpose<T: Clone>(rows: &[Vec<T>]) -> Vec<Vec<T>> {
        (0..rows.first().map_or(0, Vec::len)).map(|c| rows.iter().map(|r| r[c].clone()).collect()).collect()
    }
    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let mut v: Vec<i32> = args.iter().map(|b| i32::from(*b)).collect();
        quick(&mut v);
        let bins: [usize; 4] = histogram(v.iter().map(|x| f64::from(*x)), 0.0..=255.0);
        let primes: Vec<usize> = sieve(50).skip(2).step_by(2).collect();
        let mut f = memo();
        let ops: Vec<String> = table().iter().map(|(name, op)| format!("{name}{}", op(2.0, 3.0))).collect();
        db.reply(
            format!(
                "{v:?} {bins:?} {primes:?} {} {ops:?} {:?} {:x} {:?} {:?} {}",
                f(5),
                moving(&[1.0, 2.0, 4.0], 2),
                checksum(args),
                first_big(&[1, 200]),
                transpose(&[vec![1, 2], vec![3, 4]]),
                gcd(12u32, 18)
            )
            .as_bytes(),
        )
    }
}

/// Peeking through what is mapped: a run-length encoder over parsed words.
pub mod runs {
    use sandstorm_api::prelude::*;
    pub fn encode(bytes: &[u8]) -> Vec<(u8, usize)> {
        let mut out = Vec::new();
        let mut rest = bytes.iter().copied().peekable();
        while let Some(byte) = rest.next() {
            let mut count = 1;
            while rest.next_if_eq(&byte).is_some() {
                count += 1;
            }
            out.push((byte, count));
        }
        out
    }
    pub fn decode(pairs: &[(u8, usize)]) -> Vec<u8> {
        pairs.iter().flat_map(|&(byte, count)| core::iter::repeat_n(byte, count)).collect()
    }
    pub fn merge(left: Vec<u32>, right: Vec<u32>) -> Vec<u32> {
        let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
        let mut out = Vec::with_capacity(left.len() + right.len());
        loop {
            match (left.peek(), right.peek()) {
                (Some(a), Some(b)) => out.extend(if a <= b { left.next() } else { right.next() }),
                (Some(_), None) => out.extend(left.by_ref()),
                (None, Some(_)) => out.extend(right.by_ref()),
                (None, None) => return out,
            }
        }
    }
    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let encoded = encode(args);
        if decode(&encoded) != args {
            return Err("differs".into());
        }
        db.reply(format!("{encoded:?} {:?}", merge(vec![1, 4], vec![2, 3])).as_bytes())
    }
}

/// Generic functions, closures in structs, iterators of one's own, traits with default methods.
pub mod pipelines {
    use alloc::rc::Rc;
    use core::cell::{Cell, RefCell};
    use core::marker::PhantomData;
    use sandstorm_api::prelude::*;

    pub trait Stage {
        fn name(&self) -> &str;
        fn apply(&self, value: i64) -> Option<i64>;
        fn describe(&self) -> String {
            format!("<{}>", self.name())
        }
    }
    pub struct Named<F> {
        name: String,
        f: F,
    }
    impl<F: Fn(i64) -> Option<i64>> Stage for Named<F> {
        fn name(&self) -> &str {
            &self.name
        }
        fn apply(&self, value: i64) -> Option<i64> {
            (self.f)(value)
        }
    }
    pub fn stage<F: Fn(i64) -> Option<i64>>(name: &str, f: F) -> Named<F> {
        Named { name: name.to_owned(), f }
    }
    pub struct Both<A, B>(A, B);
    impl<A: Stage, B: Stage> Stage for Both<A, B> {
        fn name(&self) -> &str {
            self.0.name()
        }
        fn apply(&self, v: i64) -> Option<i64> {
            self.0.apply(v).and_then(|v| self.1.apply(v))
        }
        fn describe(&self) -> String {
            self.0.describe() + &self.1.describe()
        }
    }

    pub struct Windowed<T, I: Iterator<Item = T>> {
        rest: I,
        last: Option<T>,
    }
    impl<T: Clone, I: Iterator<Item = T>> Iterator for Windowed<T, I> {
        type Item = (T, T);
        fn next(&mut self) -> Option<(T, T)> {
            let next = self.rest.next()?;
            let before = self.last.replace(next.clone())?;
            Some((before, next))
        }
        fn size_hint(&self) -> (usize, Option<usize>) {
            self.rest.size_hint()
        }
    }
    pub fn pairs<T: Clone, I: IntoIterator<Item = T>>(items: I) -> Windowed<T, I::IntoIter> {
        let mut rest = items.into_iter();
        let last = rest.next();
        Windowed { rest, last }
    }
    pub struct Scale<I> {
        inner: I,
        by: u32,
    }
    impl<I: Iterator<Item = u32>> Iterator for Scale<I> {
        type Item = u32;
        fn next(&mut self) -> Option<u32> {
            self.inner.next().map(|x| x * self.by)
        }
    }
    pub fn group_by<K: Ord + Clone, V, F: FnMut(&V) -> K>(
        items: impl IntoIterator<Item = V>,
        mut key: F,
    ) -> alloc::collections::BTreeMap<K, Vec<V>> {
        let mut groups = alloc::collections::BTreeMap::new();
        for item in items {
            groups.entry(key(&item)).or_insert_with(Vec::new).push(item);
        }
        groups
    }
    pub fn max_by_score<'a, T, S: PartialOrd>(items: &'a [T], score: impl Fn(&T) -> S) -> Option<&'a T> {
        let mut best: Option<(&'a T, S)> = None;
        for item in items {
            let s = score(item);
            if best.as_ref().is_none_or(|(_, b)| s > *b) {
                best = Some((item, s));
            }
        }
        best.map(|(item, _)| item)
    }
    pub struct Id<T> {
        raw: u64,
        kind: PhantomData<T>,
    }
    impl<T> Clone for Id<T> {
        fn clone(&self) -> Self {
            *self
        }
    }
    impl<T> Copy for Id<T> {}
    pub struct Arena<T> {
        items: Vec<T>,
    }
    impl<T> Arena<T> {
        pub fn add(&mut self, item: T) -> Id<T> {
            self.items.push(item);
            Id { raw: self.items.len() as u64 - 1, kind: PhantomData }
        }
        pub fn get(&self, id: Id<T>) -> Option<&T> {
            self.items.get(id.raw as usize)
        }
        pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
            self.items.iter().enumerate().map(|(at, item)| (at as u64, item))
        }
    }
    impl<'a, T> IntoIterator for &'a Arena<T> {
        type Item = &'a T;
        type IntoIter = core::slice::Iter<'a, T>;
        fn into_iter(self) -> Self::IntoIter {
            self.items.iter()
        }
    }
    impl<T> IntoIterator for Arena<T> {
        type Item = T;
        type IntoIter = alloc::vec::IntoIter<T>;
        fn into_iter(self) -> Self::IntoIter {
            self.items.into_iter()
        }
    }
    impl<T> FromIterator<T> for Arena<T> {
        fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
            Arena { items: items.into_iter().collect() }
        }
    }
    impl<T> Extend<T> for Arena<T> {
        fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
            self.items.extend(items)
        }
    }
    pub struct Tree {
        value: i64,
        children: Vec<Rc<RefCell<Tree>>>,
    }
    impl Tree {
        fn sum(&self) -> i64 {
            self.value + self.children.iter().map(|child| child.borrow().sum()).sum::<i64>()
        }
    }
    pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
        let count = Cell::new(0);
        let pipeline = Both(
            stage("half", |v| {
                count.set(count.get() + 1);
                Some(v / 2)
            }),
            stage("odd", |v| (v % 2 == 1).then_some(v)),
        );
        let kept: Vec<i64> = (0..10).filter_map(|v| pipeline.apply(v)).collect();
        let steps: Vec<(i64, i64)> = pairs(kept.iter().copied()).collect();
        let groups = group_by(kept.clone(), |v| v % 3);
        let best = max_by_score(&kept, |v| -(*v as f64));
        let mut arena: Arena<&str> = ["a", "b"].into_iter().collect();
        let id = arena.add("c");
        arena.extend(["d"]);
        let names: String = (&arena).into_iter().copied().chain(arena.iter().map(|(_, n)| *n)).collect();
        let leaf = Rc::new(RefCell::new(Tree { value: 2, children: vec![] }));
        let root = Tree { value: 1, children: vec![Rc::clone(&leaf), leaf] };
        let scaled: Vec<u32> = Scale { inner: 1..4, by: 3 }.rev_sorted();
        db.reply(
            format!(
                "{} {steps:?} {groups:?} {best:?} {names} {:?} {} {scaled:?} {}",
                pipeline.describe(),
                arena.get(id),
                root.sum(),
                count.get()
            )
            .as_bytes(),
        )
    }
    trait RevSorted {
        fn rev_sorted(self) -> Vec<u32>;
    }
    impl<I: Iterator<Item = u32>> RevSorted for Scale<I> {
        fn rev_sorted(self) -> Vec<u32> {
            let mut v: Vec<u32> = self.collect();
            v.sort_unstable_by(|a, b| b.cmp(a));
            v
        }
    }
}
