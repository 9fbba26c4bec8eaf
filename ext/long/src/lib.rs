//! A long call: many gets, with a yield every so many.
//!
//! - the list record's value: `len u16 | key`, repeated, at least one; each key names a record
//! - args: `table u64 | gets u32 | every u32 | key` (integers little-endian; the list record's key is the rest)
//! - reads the listed records over and over until `gets` reads are done, in batches of `every` (0: all in one batch)
//!   with a yield behind each
//! - reply: `found u32 | bytes u64`: reads that met a record, bytes of value that they met
//! - errors: `NotFound` without the list record, `Invalid` when its value is no list or `gets` is over 1,000,000
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const FORMAT: &str = "args: table u64, gets u32 (at most 1000000), every u32, key of the list record (the rest)";
const LIST_FORMAT: &str = "the list record's value must be len u16, key, repeated, at least one";
const MAX_GETS: u32 = 1_000_000;

/// Reads `gets` records and yields behind every `every` of them.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, gets, every, list_key) = parse_args(args).ok_or(Error::invalid(FORMAT))?;
    let list = db.get(table, list_key).await?.ok_or(Error::not_found("no list record under the key"))?;
    let keys = parse_key_list(list.value()).filter(|keys| !keys.is_empty()).ok_or(Error::invalid(LIST_FORMAT))?;
    let (mut found, mut bytes) = (0u32, 0u64);
    let mut endless = keys.iter().cycle();
    let mut left = gets as usize;
    while left > 0 {
        let batch: Vec<&[u8]> = endless.by_ref().take(left.min(every)).copied().collect();
        for record in db.get_many(table, &batch).await?.into_iter().flatten() {
            found += 1;
            bytes += record.value().len() as u64;
        }
        left -= batch.len();
        yield_now().await;
    }
    db.reply(&found.to_le_bytes())?;
    db.reply(&bytes.to_le_bytes())
}

fn parse_key_list(mut list: &[u8]) -> Option<Vec<&[u8]>> {
    let mut keys = Vec::new();
    while !list.is_empty() {
        let (len, rest) = list.split_first_chunk::<2>()?;
        let (key, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        keys.push(key);
        list = rest;
    }
    Some(keys)
}

fn parse_args(args: &[u8]) -> Option<(TableId, u32, usize, &[u8])> {
    let (table, rest) = args.split_first_chunk::<8>()?;
    let (gets, rest) = rest.split_first_chunk::<4>()?;
    let (every, key) = rest.split_first_chunk::<4>()?;
    let gets = u32::from_le_bytes(*gets);
    let every = match u32::from_le_bytes(*every) {
        0 => usize::MAX,
        every => every as usize,
    };
    (gets <= MAX_GETS).then_some((TableId(u64::from_le_bytes(*table)), gets, every, key))
}

#[cfg(test)]
mod tests {
    use sandstorm_api::testing::TestStore;

    use super::*;

    fn args(table: TableId, gets: u32, every: u32, key: &[u8]) -> Vec<u8> {
        [&table.0.to_le_bytes()[..], &gets.to_le_bytes(), &every.to_le_bytes(), key].concat()
    }

    fn reply(found: u32, bytes: u64) -> Result<Vec<u8>, Error> {
        Ok([&found.to_le_bytes()[..], &bytes.to_le_bytes()].concat())
    }

    fn store() -> (TestStore, TableId) {
        let mut store = TestStore::new();
        let table = store.table("t");
        store.put(table, b"a", b"1");
        store.put(table, b"b", b"22");
        store.put(table, b"l", b"\x01\x00a\x01\x00b\x01\x00-");
        (store, table)
    }

    #[test]
    fn reads_as_many_as_asked_and_yields_behind_every_batch() {
        let (mut store, table) = store();
        store.interleave(false);
        for (every, batches) in [(0, 1), (1, 129), (8, 17), (64, 3), (128, 2), (129, 1), (1000, 1)] {
            assert_eq!(store.invoke(run, &args(table, 129, every, b"l")), reply(2 * 43, 3 * 43));
            assert_eq!((store.reads(), store.polls()), (130, batches + 1));
        }
        assert_eq!(store.invoke(run, &args(table, 0, 8, b"l")), reply(0, 0));
        assert_eq!(store.interleave(true).invoke(run, &args(table, 2, 1, b"l")), reply(2, 3));
    }

    #[test]
    fn a_missing_or_empty_list_and_malformed_args_are_refused() {
        let (mut store, table) = store();
        assert_eq!(store.invoke(run, &args(table, 1, 1, b"-")).unwrap_err().kind(), ErrorKind::NotFound);
        for no_list in [&b""[..], b"\x01", b"\x02\x00a"] {
            store.put(table, b"l", no_list);
            assert_eq!(store.invoke(run, &args(table, 1, 1, b"l")), Err(Error::invalid(LIST_FORMAT)));
        }
        assert_eq!(store.invoke(run, &args(table, MAX_GETS + 1, 1, b"l")), Err(Error::invalid(FORMAT)));
        for short in 0..16 {
            assert_eq!(store.invoke(run, &[0; 16][..short]), Err(Error::invalid(FORMAT)));
        }
    }
}
