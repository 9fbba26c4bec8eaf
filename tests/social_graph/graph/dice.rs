//! Random requests with few ids, types and times, so that they affect each other's answers.
#![allow(unreachable_pub)]

use sandstorm_client::tao::Fields;

use super::oracle::{Edge, GraphQuery, MOST_DATA, MOST_FIELD_BYTES, MOST_FIELDS, Oracle};

/// Splitmix: a sequence of numbers from a seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    pub fn of<T: Copy>(&mut self, some: &[T]) -> T {
        some[self.below(some.len() as u64) as usize]
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(len).collect()
    }
}

/// A few ids from which edges go, the smallest and the largest id among them.
pub const FROM: [u64; 5] = [0, 1, 2, 3, u64::MAX];
/// Ids with long lists, to and from [`MANY`].
pub const HUBS: [u64; 2] = [1 << 40, (1 << 40) + 1];
/// The first id at the other ends of the long lists.
pub const MANY: u64 = 1 << 41;
/// Types that are declared at first, with their inverses.
pub const DECLARED: [(u32, Option<u32>); 6] =
    [(1, Some(1)), (2, Some(3)), (4, None), (6, Some(u32::MAX)), (7, Some(7)), (0, None)];
/// All types of edges: 5, and those from 8 on, are declared late, or never.
pub const TYPES: [u32; 14] = [1, 2, 3, 4, 6, u32::MAX, 7, 0, 5, 8, 9, 10, 11, 12];
const TIMES: [u64; 9] = [0, 1, 2, 3, 100, 101, 1 << 32, u64::MAX - 1, u64::MAX];
const LIMITS: [u32; 10] = [0, 1, 2, 3, 5, 50, 5_999, 6_000, 6_001, u32::MAX];

/// The parameters of a world's requests.
pub struct World {
    pub dice: Dice,
    /// Number of ids at the other ends of the long lists; 0: there are none.
    pub many: u64,
}

impl World {
    /// The next question.
    pub fn query(&mut self, oracle: &Oracle) -> GraphQuery {
        match self.dice.below(100) {
            0..22 => {
                let mut edge = self.edge(oracle);
                if self.dice.one_in(20) {
                    edge.2 = edge.0;
                }
                GraphQuery::Add(edge, self.time(), self.data())
            }
            22..32 => GraphQuery::Delete(self.edge(oracle)),
            32..42 => {
                // Edges from an id to itself are rare, and twice as hard.
                let id = self.dice.of(&FROM);
                let itself = (id, self.dice.of(&[2, 3, 6, u32::MAX]), id);
                let edge = if oracle.edges.contains_key(&itself) { itself } else { self.edge(oracle) };
                let newtype = match (self.dice.below(6), edge.1) {
                    (0, same) => same,
                    // The inverse.
                    (1, atype @ 2..=3) => 5 - atype,
                    (1, 6) => u32::MAX,
                    (1, u32::MAX) => 6,
                    _ => self.atype(),
                };
                GraphQuery::Change(edge, newtype)
            }
            42..46 => GraphQuery::ObjAdd(self.dice.next() as u32, self.fields()),
            46..50 => GraphQuery::ObjGet(self.object(oracle)),
            50..55 => self.update(oracle),
            55..57 => GraphQuery::ObjDelete(self.object(oracle)),
            57..67 => self.get(),
            67..75 => GraphQuery::Count(self.list()),
            75..86 => self.range(oracle),
            86..97 => {
                let (list, high, low) = (self.list(), self.time(), self.time());
                let (high, low) = if self.dice.one_in(4) { (high, low) } else { (high.max(low), high.min(low)) };
                GraphQuery::TimeRange { list, high, low, limit: self.limit() }
            }
            97 => GraphQuery::Declared(self.atype()),
            _ => GraphQuery::Declare(self.atype(), (!self.dice.one_in(3)).then(|| self.atype())),
        }
    }

    fn hub(&mut self) -> Option<u64> {
        (self.many > 0 && self.dice.one_in(3)).then(|| self.dice.of(&HUBS))
    }

    fn atype(&mut self) -> u32 {
        self.dice.of(&TYPES)
    }

    fn time(&mut self) -> u64 {
        if self.dice.one_in(4) { self.dice.next() >> self.dice.below(64) } else { self.dice.of(&TIMES) }
    }

    fn limit(&mut self) -> u32 {
        self.dice.of(&LIMITS)
    }

    /// An edge that may exist; half of the time one that does.
    fn edge(&mut self, oracle: &Oracle) -> Edge {
        if self.dice.one_in(2) {
            let id = self.dice.of(&FROM);
            let from = (id, self.atype(), if self.dice.one_in(4) { id } else { self.dice.below(60) });
            if let Some((edge, _)) = oracle.edges.range(from..).next() {
                return *edge;
            }
        }
        if let Some(hub) = self.hub() {
            let (many, atype) = (MANY + self.dice.below(self.many + 20), self.dice.of(&[1, 2, 3, 4]));
            return if self.dice.one_in(4) { (many, atype, hub) } else { (hub, atype, many) };
        }
        let from = self.dice.of(&FROM);
        let to = match self.dice.below(12) {
            0 => from,
            1..5 => self.dice.below(60),
            _ => self.dice.of(&FROM),
        };
        (from, self.atype(), to)
    }

    fn list(&mut self) -> (u64, u32) {
        match self.hub() {
            Some(hub) => (hub, self.dice.of(&[1, 2, 3, 4])),
            None if self.many > 0 && self.dice.one_in(10) => (MANY + self.dice.below(self.many), self.dice.of(&[1, 3])),
            None => (self.dice.of(&FROM), self.atype()),
        }
    }

    fn data(&mut self) -> Vec<u8> {
        let len = match self.dice.below(100) {
            0 => MOST_DATA,
            1 => MOST_DATA + 1,
            2..10 => 5_000,
            10..40 => 0,
            _ => self.dice.below(64) as usize,
        };
        self.dice.bytes(len)
    }

    fn name(&mut self) -> Vec<u8> {
        match self.dice.below(60) {
            0 => vec![b'n'; 255],
            1 => vec![b'n'; 256],
            2 => Vec::new(),
            3 => vec![0xff, 0],
            some => vec![b'a' + (some % 6) as u8],
        }
    }

    fn fields(&mut self) -> Fields {
        match self.dice.below(60) {
            0 => (0..MOST_FIELDS).map(|number| (format!("f{number}"), "v")).collect(),
            1 => (0..=MOST_FIELDS).map(|number| (format!("f{number}"), "v")).collect(),
            // Two of these exceed the limit.
            2 | 3 => {
                let name = self.name();
                [(name, vec![7; MOST_FIELD_BYTES / 2 + 1])].into_iter().collect()
            }
            // Exactly the limit, and one byte more.
            4 => [("a", vec![7; MOST_FIELD_BYTES - 6])].into_iter().collect(),
            5 => [("a", vec![7; MOST_FIELD_BYTES - 5])].into_iter().collect(),
            some => {
                let some = some % 5;
                (0..some)
                    .map(|_| (self.name(), self.dice.below(40) as usize))
                    .collect::<Vec<_>>()
                    .into_iter()
                    .map(|(name, len)| (name, vec![len as u8; len]))
                    .collect()
            }
        }
    }

    /// Mostly an object that was created, though it may be deleted.
    fn object(&mut self, oracle: &Oracle) -> u64 {
        if self.dice.one_in(10) {
            return self.dice.of(&FROM);
        }
        let newest = oracle.given.last().copied().unwrap_or(1);
        newest.saturating_sub(self.dice.below(20))
    }

    fn update(&mut self, oracle: &Oracle) -> GraphQuery {
        let (id, fields) = (self.object(oracle), self.fields());
        let mut away: Vec<Vec<u8>> = (0..self.dice.below(3)).map(|_| self.name()).collect();
        away.retain(|name| (1..256).contains(&name.len()));
        away.sort();
        away.dedup();
        if !self.dice.one_in(8) {
            away.retain(|name| !fields.0.contains_key(name));
        }
        GraphQuery::ObjUpdate(id, fields, away)
    }

    fn get(&mut self) -> GraphQuery {
        let list = self.list();
        let mut ids: Vec<u64> = match self.dice.below(40) {
            0 => (0..6_100).collect(),
            1 if self.many > 0 => (MANY..MANY + self.many).rev().collect(),
            _ => (0..self.dice.below(14)).map(|_| self.dice.below(60)).collect(),
        };
        ids.extend((0..self.dice.below(6)).map(|_| self.dice.of(&FROM)));
        if list.0 >= HUBS[0] {
            ids.extend((0..10).map(|_| MANY + self.dice.below(self.many + 20)));
            ids.extend(HUBS);
        }
        let high = (!self.dice.one_in(3)).then(|| self.time());
        let low = (!self.dice.one_in(3)).then(|| self.time());
        GraphQuery::Get { list, ids, high, low }
    }

    fn range(&mut self, oracle: &Oracle) -> GraphQuery {
        let list = self.list();
        let len = oracle.edges.range((list.0, list.1, 0)..=(list.0, list.1, u64::MAX)).count() as u64;
        let pos = match self.dice.below(8) {
            0 => len,
            1 => len + 1,
            2 => len.saturating_sub(1),
            3 => u64::MAX - self.dice.below(3),
            4 => self.dice.next() >> self.dice.below(64),
            5 => 0,
            _ => self.dice.below(len + 2),
        };
        GraphQuery::Range { list, pos, limit: self.limit() }
    }
}
