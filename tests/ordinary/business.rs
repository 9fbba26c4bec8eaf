//! Ordinary extensions, one module each: what services are made of.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

/// Structs with generics, builders, error types, conversions.
pub mod orders {
    use alloc::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
    use core::cmp::{Ordering, Reverse};
    use core::convert::TryFrom;
    use core::fmt;
    use core::str::FromStr;
    use sandstorm_api::prelude::*;

    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Problem {
        Empty,
        Number(core::num::ParseIntError),
        Field { name: &'static str, found: String },
    }
    impl fmt::Display for Problem {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Problem::Empty => f.write_str("nothing there"),
                Problem::Number(error) => write!(f, "a number: {error}"),
                Problem::Field { name, found } => write!(f, "{name}: {found:?}"),
            }
        }
    }
    impl core::error::Error for Problem {
        fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
            match self {
                Problem::Number(error) => Some(error),
                _ => None,
            }
        }
    }
    impl From<core::num::ParseIntError> for Problem {
        fn from(error: core::num::ParseIntError) -> Self {
            Problem::Number(error)
        }
    }
    impl From<Problem> for Error {
        fn from(problem: Problem) -> Error {
            Error::new(problem.to_string())
        }
    }

    #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Order {
        pub id: u64,
        pub lines: Vec<Line>,
    }
    #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Line {
        pub item: String,
        pub count: u32,
        pub price: u64,
    }
    impl FromStr for Line {
        type Err = Problem;
        fn from_str(text: &str) -> Result<Self, Self::Err> {
            let mut fields = text.splitn(3, ':').map(str::trim);
            let mut field = |name: &'static str| {
                fields.next().filter(|f| !f.is_empty()).ok_or(Problem::Field { name, found: text.to_owned() })
            };
            Ok(Line {
                item: field("item")?.to_owned(),
                count: field("count")?.parse()?,
                price: field("price")?.parse()?,
            })
        }
    }
    impl TryFrom<&[u8]> for Order {
        type Error = Problem;
        fn try_from(bytes: &[u8]) -> Result<Self, Problem> {
            let text = core::str::from_utf8(bytes).map_err(|_| Problem::Empty)?;
            let (id, rest) = text.split_once('\n').ok_or(Problem::Empty)?;
            let lines = rest.lines().map(Line::from_str).collect::<Result<Vec<_>, _>>()?;
            Ok(Order { id: id.parse()?, lines })
        }
    }
    #[derive(Default)]
    pub struct Builder {
        id: Option<u64>,
        lines: Vec<Line>,
    }
    impl Builder {
        #[must_use]
        pub fn id(mut self, id: u64) -> Self {
            self.id = Some(id);
            self
        }
        #[must_use]
        pub fn line(mut self, line: impl Into<Line>) -> Self {
            self.lines.push(line.into());
            self
        }
        pub fn build(self) -> Result<Order, Problem> {
            Ok(Order { id: self.id.ok_or(Problem::Empty)?, lines: self.lines })
        }
    }
    impl From<(&str, u32, u64)> for Line {
        fn from((item, count, price): (&str, u32, u64)) -> Self {
            Line { item: item.into(), count, price }
        }
    }

    #[derive(PartialEq, Eq)]
    struct Best {
        total: u64,
        id: u64,
    }
    impl Ord for Best {
        fn cmp(&self, other: &Self) -> Ordering {
            self.total.cmp(&other.total).then_with(|| other.id.cmp(&self.id))
        }
    }
    impl PartialOrd for Best {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    pub fn top(orders: &[Order], k: usize) -> Vec<u64> {
        let mut heap = BinaryHeap::with_capacity(k + 1);
        for order in orders {
            heap.push(Reverse(Best {
                total: order.lines.iter().map(|l| u64::from(l.count) * l.price).sum(),
                id: order.id,
            }));
            if heap.len() > k {
                heap.pop();
            }
        }
        heap.into_sorted_vec().into_iter().map(|Reverse(best)| best.id).collect()
    }
    pub fn by_item(orders: &[Order]) -> BTreeMap<&str, BTreeSet<u64>> {
        let mut map: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
        for (item, id) in orders.iter().flat_map(|o| o.lines.iter().map(move |l| (l.item.as_str(), o.id))) {
            map.entry(item).or_default().insert(id);
        }
        map
    }
    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let order = Order::try_from(args)?;
        let second = Builder::default().id(7).line(("tea", 2, 300)).line(Line::from_str("milk:1:90")?).build()?;
        let mut queue: VecDeque<Order> = [order, second].into_iter().collect();
        queue.rotate_left(1);
        let orders: Vec<Order> = queue.into();
        let shown: Vec<String> = by_item(&orders).iter().map(|(item, ids)| format!("{item}={ids:?}")).collect();
        db.reply(format!("{:?} {}", top(&orders, 1), shown.join(",")).as_bytes())
    }
}

/// Async helpers, state machines, retries.
pub mod flows {
    use core::future::Future;
    use sandstorm_api::prelude::*;
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum State {
        Start,
        Reading { tries: u8 },
        Done(u64),
        Failed,
    }
    impl State {
        fn next(self, found: Option<u64>) -> State {
            match (self, found) {
                (State::Start, _) => State::Reading { tries: 0 },
                (State::Reading { .. }, Some(n)) => State::Done(n),
                (State::Reading { tries }, None) if tries < 3 => State::Reading { tries: tries + 1 },
                (State::Reading { .. }, None) => State::Failed,
                (other, _) => other,
            }
        }
    }
    async fn number(db: &Db<'_>, table: TableId, key: &[u8]) -> Result<Option<u64>, Error> {
        let Some(record) = db.get(table, key).await? else { return Ok(None) };
        Ok(record.value().try_into().ok().map(u64::from_le_bytes))
    }
    async fn retry<T, F: Future<Output = Result<T, Error>>>(
        mut tries: u32,
        mut f: impl FnMut() -> F,
    ) -> Result<T, Error> {
        loop {
            match f().await {
                Err(error) if error.kind() == ErrorKind::Conflict && tries > 0 => {
                    tries -= 1;
                    yield_now().await;
                }
                other => return other,
            }
        }
    }
    async fn bump(db: &Db<'_>, table: TableId, key: &[u8]) -> Result<u64, Error> {
        let old = db.get(table, key).await?;
        let n = old.as_ref().and_then(|r| r.value().first_chunk::<8>().copied()).map_or(0, u64::from_le_bytes) + 1;
        let bytes = n.to_le_bytes();
        let put = db.put(table, key, &bytes);
        match &old {
            Some(r) => put.if_version(r.version()).await?,
            None => put.if_absent().await?,
        };
        Ok(n)
    }
    async fn chain(db: &Db<'_>, table: TableId, start: &[u8], hops: usize) -> Result<Vec<u8>, Error> {
        let mut key = start.to_vec();
        for _ in 0..hops {
            match db.get(table, &key).await? {
                Some(next) => key = next.value().to_vec(),
                None => break,
            }
        }
        Ok(key)
    }
    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let table = db.table("flows")?;
        let mut state = State::Start;
        while !matches!(state, State::Done(_) | State::Failed) {
            state = state.next(number(&db, table, args).await?);
        }
        let n = retry(3, || bump(&db, table, args)).await?;
        let keys: Vec<[u8; 2]> = (0..4u8).map(|x| [b'k', x]).collect();
        let total: usize = db.get_many(table, &keys).await?.iter().flatten().map(|r| r.value().len()).sum();
        let matrix = [[1u8, 2], [3, 4]];
        let picked = matrix[usize::from(n % 2 == 0)][total % 2];
        let last = chain(&db, table, args, 4).await?;
        db.reply(format!("{state:?} {n} {total} {picked} {last:?}").as_bytes())
    }
}

/// Peeking at what closures make of words, and at what another function hands out.
pub mod feeds {
    use sandstorm_api::prelude::*;

    #[derive(Debug, Clone, PartialEq)]
    pub enum Word {
        Number(i64),
        Name(String),
    }

    fn word(text: &str) -> Word {
        text.parse().map_or_else(|_| Word::Name(text.to_owned()), Word::Number)
    }

    pub fn words(text: &str) -> impl Iterator<Item = Word> {
        text.split_whitespace().map(word)
    }

    /// Sums of the numbers behind each name.
    pub fn sums(text: &str) -> Vec<(String, i64)> {
        let mut rest = words(text).peekable();
        let mut out = Vec::new();
        while let Some(next) = rest.next() {
            let Word::Name(name) = next else { continue };
            let mut sum = 0;
            while let Some(&Word::Number(number)) = rest.peek() {
                sum += number;
                rest.next();
            }
            out.push((name, sum));
        }
        out
    }

    /// The longest run of numbers that grow.
    pub fn longest_rise(text: &str) -> usize {
        let mut numbers = text.split(',').filter_map(|part| part.trim().parse::<i64>().ok()).peekable();
        let (mut best, mut now) = (0, 0);
        while let Some(number) = numbers.next() {
            now += 1;
            best = best.max(now);
            if numbers.peek().is_none_or(|next| *next <= number) {
                now = 0;
            }
        }
        best
    }

    pub fn digits(text: &str) -> Vec<u32> {
        text.chars().map(|letter| letter.to_digit(10)).flatten().collect()
    }

    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let text = core::str::from_utf8(args)?;
        db.reply(format!("{:?} {} {:?}", sums(text), longest_rise(text), digits(text)).as_bytes())
    }
}
