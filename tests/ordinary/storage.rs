//! Ordinary extensions, one module each: what people do with tables, records and futures.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

/// A transfer between accounts, with versions.
pub mod transfer {
    use sandstorm_api::prelude::*;

    const ATTEMPTS: usize = 5;

    struct Request<'a> {
        from: &'a [u8],
        to: &'a [u8],
        amount: i64,
    }

    impl<'a> TryFrom<&'a [u8]> for Request<'a> {
        type Error = Error;
        fn try_from(args: &'a [u8]) -> Result<Self, Self::Error> {
            let mut parts = args.splitn(3, |byte| *byte == b' ');
            let (Some(from), Some(to), Some(amount), None) = (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                return Err(Error::invalid("args: from to amount"));
            };
            let amount = core::str::from_utf8(amount).ok().and_then(|text| text.parse().ok());
            Ok(Request { from, to, amount: amount.ok_or(Error::invalid("amount"))? })
        }
    }

    async fn balance(db: Db<'_>, table: TableId, key: &[u8]) -> Result<(i64, u64), Error> {
        let Some(record) = db.get(table, key).await? else { return Ok((0, 0)) };
        let bytes: [u8; 8] = record.value().try_into().map_err(|_| Error::invalid("a balance has eight bytes"))?;
        Ok((i64::from_le_bytes(bytes), record.version()))
    }

    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let request = Request::try_from(args)?;
        let table = db.table("accounts")?;
        for attempt in 0..ATTEMPTS {
            let (have, version) = balance(db, table, request.from).await?;
            if have < request.amount {
                return Err(Error::invalid(format!("only {have} there")));
            }
            let left = (have - request.amount).to_le_bytes();
            match db.put(table, request.from, &left).if_version(version).await {
                Ok(_) => break,
                Err(error) if attempt + 1 == ATTEMPTS => return Err(error),
                Err(_) => yield_now().await,
            }
        }
        let (have, _) = balance(db, table, request.to).await?;
        db.put(table, request.to, &(have + request.amount).to_le_bytes()).await?;
        db.reply(b"done")
    }
}

/// An order that takes from several stocks, in a transaction that helpers are given.
pub mod order {
    use sandstorm_api::prelude::*;

    struct Shop<'a> {
        tx: Transaction<'a>,
        stocks: TableId,
        orders: TableId,
    }

    #[derive(Clone, Copy)]
    struct Line<'a> {
        article: &'a [u8],
        count: u32,
    }

    fn lines(args: &[u8]) -> impl Iterator<Item = Line<'_>> {
        args.split(|byte| *byte == b'\n').filter_map(|line| {
            let at = line.iter().position(|byte| *byte == b' ')?;
            let count = core::str::from_utf8(&line[at + 1..]).ok()?.parse().ok()?;
            Some(Line { article: &line[..at], count })
        })
    }

    impl<'a> Shop<'a> {
        async fn stock(&self, article: &[u8]) -> Result<u32, Error> {
            let Some(found) = self.tx.get(self.stocks, article).await? else { return Ok(0) };
            Ok(u32::from_le_bytes(found.value().try_into()?))
        }

        async fn take(&self, line: Line<'_>) -> Result<u32, Error> {
            let rest = self.stock(line.article).await?.checked_sub(line.count);
            let rest = rest.ok_or_else(|| Error::new(format!("not enough of {:?}", line.article)))?;
            match rest {
                0 => self.tx.delete(self.stocks, line.article).await.map(drop)?,
                _ => self.tx.put(self.stocks, line.article, &rest.to_le_bytes())?,
            }
            Ok(rest)
        }
    }

    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let shop = Shop { tx: db.transaction(), stocks: db.table("stocks")?, orders: db.table("orders")? };
        let mut rests = Vec::new();
        for line in lines(args) {
            rests.push((line.article, shop.take(line).await?));
        }
        let known: Vec<Seen<'_>> =
            shop.tx.get_many(shop.orders, &[&b"last"[..], b"first"]).await?.into_iter().flatten().collect();
        let number = known.first().map_or(0, |last| last.value().len() as u8);
        shop.tx.put_with(shop.orders, b"last", &[number], 0, 60_000)?;
        rests.iter().try_for_each(|(article, rest)| db.reply(format!("{article:?} {rest}\n").as_bytes()))
    }
}

/// A secondary index, kept with the records.
pub mod index {
    use sandstorm_api::prelude::*;

    fn entry(field: &[u8], key: &[u8]) -> Vec<u8> {
        let mut entry = Vec::with_capacity(field.len() + 1 + key.len());
        entry.extend_from_slice(field);
        entry.push(0);
        entry.extend(key);
        entry
    }

    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let (key, value) = args.split_at_checked(8).ok_or(Error::invalid("a key of eight bytes"))?;
        let (rows, index) = (db.table("rows")?, db.table("index")?);
        let field = value.split(|byte| *byte == b',').next().unwrap_or_default();
        if let Some(old) = db.get(rows, key).await? {
            let before = old.value().split(|byte| *byte == b',').next().unwrap_or_default();
            if before != field {
                db.delete(index, &entry(before, key)).await?;
            }
        }
        db.put(rows, key, value).await?;
        db.put(index, &entry(field, key), &[]).if_absent().await.map(|_| ()).or_else(|error| match error.kind() {
            ErrorKind::Conflict => Ok(()),
            _ => Err(error),
        })
    }

    use sandstorm_api::ErrorKind;
}

/// A scan with a filter, a projection and a limit.
pub mod query {
    use sandstorm_api::Cursor;
    use sandstorm_api::prelude::*;

    #[derive(Clone, Copy)]
    enum Test {
        Prefix,
        Contains,
    }

    fn matches(test: Test, value: &[u8], wanted: &[u8]) -> bool {
        match test {
            Test::Prefix => value.starts_with(wanted),
            Test::Contains if wanted.is_empty() => true,
            Test::Contains => value.windows(wanted.len()).any(|window| window == wanted),
        }
    }

    async fn select<'d>(db: Db<'d>, table: TableId, keep: impl Fn(&Record<'d>) -> bool) -> Result<Vec<Record<'d>>, Error> {
        let mut found = Vec::new();
        let mut at = Some(Cursor::default());
        while let Some(cursor) = at {
            let page = db.scan(table, cursor, 64)?;
            found.extend(page.records.into_iter().filter(|record| keep(record)));
            at = page.next;
            yield_now().await;
        }
        Ok(found)
    }

    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let test = match args.first() {
            Some(b'p') => Test::Prefix,
            Some(b'c') => Test::Contains,
            _ => return Err(Error::invalid("p or c")),
        };
        let mut found = select(db, db.table("rows")?, |record| matches(test, record.value(), &args[1..])).await?;
        found.sort_by_key(|record| record.key());
        let total: usize = found.iter().map(|record| record.value().len()).sum();
        db.reply(&total.to_le_bytes())?;
        found.iter().take(100).try_for_each(|record| db.reply(record.key()))
    }
}

/// Rate limits with counters that expire.
pub mod limiter {
    use sandstorm_api::prelude::*;

    const WINDOW_MS: u64 = 60_000;

    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let table = db.table("limits")?;
        let window = db.now_ms() / WINDOW_MS;
        let key = [args, b"/", &window.to_be_bytes()].concat();
        let count = db.increment(table, &key, 1).await?;
        db.reply(if count > 100 { b"wait" } else { b"pass" })
    }
}

/// A graph walked breadth first, with many reads at once.
pub mod graph {
    use alloc::collections::{BTreeSet, VecDeque};
    use sandstorm_api::prelude::*;

    fn neighbours(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
        bytes.chunks_exact(4).filter_map(|chunk| chunk.try_into().ok()).map(u32::from_be_bytes)
    }

    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let start = args.try_into().map(u32::from_be_bytes).map_err(|_| Error::invalid("four bytes"))?;
        let table = db.table("edges")?;
        let mut seen = BTreeSet::from([start]);
        let mut waiting = VecDeque::from([start]);
        while !waiting.is_empty() {
            let keys: Vec<[u8; 4]> = waiting.drain(..).map(u32::to_be_bytes).collect();
            for record in db.get_many(table, &keys).await?.into_iter().flatten() {
                for next in neighbours(record.value()) {
                    if seen.insert(next) {
                        waiting.push_back(next);
                    }
                }
            }
        }
        let reply: Vec<u8> = seen.into_iter().flat_map(u32::to_be_bytes).collect();
        db.reply(&reply)
    }
}

/// Recursion by a boxed future.
pub mod comments {
    use alloc::boxed::Box;
    use core::future::Future;
    use core::pin::Pin;
    use sandstorm_api::prelude::*;

    type Step<'d> = Pin<Box<dyn Future<Output = Result<usize, Error>> + 'd>>;

    fn count<'d>(db: Db<'d>, table: TableId, id: u32, depth: usize) -> Step<'d> {
        Box::pin(async move {
            if depth > 16 {
                return Err(Error::invalid("too deep"));
            }
            let Some(record) = db.get(table, &id.to_le_bytes()).await? else { return Ok(0) };
            let mut total = 1;
            for child in record.value().chunks_exact(4) {
                let child = u32::from_le_bytes(child.try_into().unwrap_or_default());
                total += count(db, table, child, depth + 1).await?;
            }
            Ok(total)
        })
    }

    pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
        let total = count(db, db.table("comments")?, 0, 0).await?;
        db.reply(&(total as u64).to_le_bytes())
    }
}

/// A future of its own, and one that is given up halfway.
pub mod futures {
    use core::future::{Future, poll_fn, ready};
    use core::pin::Pin;
    use core::task::{Context, Poll};
    use sandstorm_api::prelude::*;

    struct Countdown(u32);

    impl Future for Countdown {
        type Output = &'static str;
        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
            if self.0 == 0 {
                return Poll::Ready("lift off");
            }
            self.0 -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        }
    }

    async fn first<A: Future + Unpin, B: Future<Output = A::Output> + Unpin>(mut a: A, mut b: B) -> A::Output {
        poll_fn(move |context| match Pin::new(&mut a).poll(context) {
            Poll::Pending => Pin::new(&mut b).poll(context),
            done => done,
        })
        .await
    }

    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let table = db.table("t")?;
        let text = first(Countdown(3), Countdown(1)).await;
        let mut read = Box::pin(db.get(table, args));
        let record = poll_fn(|context| match read.as_mut().poll(context) {
            Poll::Ready(found) => Poll::Ready(Some(found)),
            Poll::Pending => Poll::Ready(None),
        })
        .await;
        drop(read);
        let found = matches!(record, Some(Ok(Some(_))));
        ready(()).await;
        db.reply(format!("{text} {found}").as_bytes())
    }
}

/// Records in a format of its own: a writer, a reader, a check sum.
pub mod codec {
    use core::fmt::Write as _;
    use sandstorm_api::prelude::*;

    #[derive(Default)]
    pub struct Writer {
        bytes: Vec<u8>,
    }

    impl Writer {
        #[must_use]
        pub fn number(mut self, mut value: u64) -> Self {
            while value >= 0x80 {
                self.bytes.push(value as u8 | 0x80);
                value >>= 7;
            }
            self.bytes.push(value as u8);
            self
        }

        #[must_use]
        pub fn bytes(self, bytes: &[u8]) -> Self {
            let mut writer = self.number(bytes.len() as u64);
            writer.bytes.extend_from_slice(bytes);
            writer
        }

        pub fn finish(mut self) -> Vec<u8> {
            let sum = checksum(&self.bytes);
            self.bytes.extend(sum.to_le_bytes());
            self.bytes
        }
    }

    pub fn checksum(bytes: &[u8]) -> u32 {
        const TABLE: [u32; 256] = table();
        !bytes.iter().fold(!0, |sum, byte| TABLE[((sum ^ u32::from(*byte)) & 0xff) as usize] ^ (sum >> 8))
    }

    const fn table() -> [u32; 256] {
        let mut table = [0; 256];
        let mut index = 0;
        while index < table.len() {
            let mut value = index as u32;
            let mut bit = 0;
            while bit < 8 {
                value = if value & 1 == 1 { 0xedb8_8320 ^ (value >> 1) } else { value >> 1 };
                bit += 1;
            }
            table[index] = value;
            index += 1;
        }
        table
    }

    pub fn hex(bytes: &[u8]) -> String {
        let mut out = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            let _ = write!(out, "{byte:02x}");
        }
        out
    }

    pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
        let packed = Writer::default().number(args.len() as u64).bytes(args).finish();
        db.reply(hex(&packed).as_bytes())
    }

    #[cfg(test)]
    mod tests {
        extern crate std;
        use super::*;
        use std::vec;

        static KNOWN: &[u8] = b"123456789";

        #[test]
        fn the_sum_is_the_known_one() {
            assert_eq!(checksum(KNOWN), 0xcbf4_3926, "of {KNOWN:?}");
            std::println!("{:?}", vec![1, 2]);
        }

        #[test]
        #[should_panic(expected = "index")]
        #[ignore = "shows how"]
        fn it_panics() {
            let _ = [0_u8; 1][KNOWN.len()];
        }
    }
}
