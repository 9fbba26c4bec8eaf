//! Pages through a table and replies with the records that a predicate picks.
//!
//! - args: `table u64 | page u32 | limit u32 | minimum u64 | prefix` (integers little-endian; the prefix is the rest)
//! - a record matches when its key starts with `prefix` and the number at the start of its value, u64, is at least
//!   `minimum` (a value shorter than 8 bytes counts as if it ended in zeros; a minimum of 0 lets every value match)
//! - `page` records are read between two yields, 1 to 4096
//! - reply: `matches u64`, then for each of the first `limit` matches `key_len u32 | value_len u32 | key | value`, in
//!   no particular order; a record written during the scan may count twice or not at all
//! - errors: `Invalid` for a page out of range, `TooLarge` when the matches do not fit into a reply
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const FORMAT: &str = "args: table u64, page u32 (1 to 4096), limit u32, minimum u64, key prefix (the rest)";
const MAX_PAGE: u32 = 4096;

struct ScanArgs<'a> {
    table: TableId,
    page: u32,
    limit: u32,
    minimum: u64,
    prefix: &'a [u8],
}

/// Scans the whole table, a page at a time.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let args = parse_args(args).ok_or(Error::invalid(FORMAT))?;
    let mut matches = 0u64;
    let mut matching = Vec::new();
    let mut next = Some(Default::default());
    while let Some(cursor) = next {
        let page = db.scan_page(args.table, cursor, args.page as usize).await?;
        for record in page.records.into_iter().filter(|record| matches_predicate(&args, record)) {
            if matches < u64::from(args.limit) {
                matching.push(record);
            }
            matches += 1;
        }
        next = page.next;
        yield_now().await;
    }
    reply(db, matches, &matching)
}

fn matches_predicate(args: &ScanArgs<'_>, record: &Record<'_>) -> bool {
    record.key().starts_with(args.prefix) && leading_u64(record.value()) >= args.minimum
}

fn reply(db: Db<'_>, matches: u64, matching: &[Record<'_>]) -> Result<(), Error> {
    db.reply(&matches.to_le_bytes())?;
    for record in matching {
        db.reply(&(record.key().len() as u32).to_le_bytes())?;
        db.reply(&(record.value().len() as u32).to_le_bytes())?;
        db.reply(record.key())?;
        db.reply(record.value())?;
    }
    Ok(())
}

fn leading_u64(value: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(value) {
        *to = *from;
    }
    u64::from_le_bytes(bytes)
}

fn parse_args(args: &[u8]) -> Option<ScanArgs<'_>> {
    let (table, rest) = args.split_first_chunk::<8>()?;
    let (page, rest) = rest.split_first_chunk::<4>()?;
    let (limit, rest) = rest.split_first_chunk::<4>()?;
    let (minimum, prefix) = rest.split_first_chunk::<8>()?;
    let page = u32::from_le_bytes(*page);
    (1..=MAX_PAGE).contains(&page).then_some(ScanArgs {
        table: TableId(u64::from_le_bytes(*table)),
        page,
        limit: u32::from_le_bytes(*limit),
        minimum: u64::from_le_bytes(*minimum),
        prefix,
    })
}

#[cfg(test)]
mod tests {
    use sandstorm_api::testing::TestStore;

    use super::*;

    fn args(table: TableId, page: u32, limit: u32, minimum: u64, prefix: &[u8]) -> Vec<u8> {
        [&table.0.to_le_bytes()[..], &page.to_le_bytes(), &limit.to_le_bytes(), &minimum.to_le_bytes(), prefix].concat()
    }

    fn store() -> (TestStore, TableId) {
        let mut store = TestStore::new();
        let table = store.table("t");
        for number in 0..100u64 {
            store.put(table, format!("a{number}").as_bytes(), &number.to_le_bytes());
            store.put(table, format!("b{number}").as_bytes(), &[number as u8]);
        }
        (store, table)
    }

    fn matches(reply: &[u8]) -> u64 {
        u64::from_le_bytes(*reply.first_chunk().unwrap())
    }

    fn keys(reply: &[u8]) -> BTreeSet<String> {
        let mut rest = &reply[8..];
        let mut keys = BTreeSet::new();
        while let Some((lens, body)) = rest.split_first_chunk::<8>() {
            let key_len = u32::from_le_bytes([lens[0], lens[1], lens[2], lens[3]]) as usize;
            let value_len = u32::from_le_bytes([lens[4], lens[5], lens[6], lens[7]]) as usize;
            let (key, behind) = body.split_at(key_len);
            let new = keys.insert(String::from_utf8(key.to_vec()).unwrap());
            assert!(new, "no record twice");
            rest = &behind[value_len..];
        }
        assert!(rest.is_empty());
        keys
    }

    #[test]
    fn every_page_size_finds_the_same_records() {
        let (mut store, table) = store();
        let wanted: BTreeSet<String> = (90..100).map(|number| format!("a{number}")).collect();
        for page in [1, 7, 64, 65, 200, 201, MAX_PAGE] {
            let reply = store.invoke(run, &args(table, page, 100, 90, b"a")).unwrap();
            assert_eq!((matches(&reply), keys(&reply)), (10, wanted.clone()));
            assert!(store.polls() > u64::from(200 / page), "a yield between pages");
        }
    }

    #[test]
    fn the_limit_bounds_the_records_but_not_the_count() {
        let (mut store, table) = store();
        for (limit, matching) in [(0, 0), (3, 3), (200, 200), (1000, 200)] {
            let reply = store.invoke(run, &args(table, 16, limit, 0, b"")).unwrap();
            assert_eq!((matches(&reply), keys(&reply).len()), (200, matching));
        }
        let empty = store.table("empty");
        assert_eq!(store.invoke(run, &args(empty, 16, 9, 0, b"")), Ok(vec![0; 8]));
    }

    #[test]
    fn too_many_matches_and_malformed_args_are_refused() {
        let (mut store, table) = store();
        let error = store.limit_reply(100).invoke(run, &args(table, 16, 100, 0, b"a")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        for page in [0, MAX_PAGE + 1] {
            assert_eq!(store.invoke(run, &args(table, page, 1, 0, b"")), Err(Error::invalid(FORMAT)));
        }
        let whole = args(table, 1, 1, 0, b"");
        for short in 0..whole.len() {
            assert_eq!(store.invoke(run, &whole[..short]), Err(Error::invalid(FORMAT)));
        }
        assert_eq!(store.invoke(run, &args(TableId(99), 1, 1, 0, b"")).unwrap_err().kind(), ErrorKind::UnknownTable);
    }
}
