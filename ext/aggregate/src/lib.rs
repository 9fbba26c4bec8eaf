//! Sums the numbers in a list of records, after some rounds of arithmetic on each.
//!
//! - the list record's value: `len u16 | key`, repeated; each key names a record whose value starts with a number, u64
//!   (a value shorter than 8 bytes counts as if it ended in zeros)
//! - args: `table u64 | rounds u32 | key` (integers little-endian; the list record's key is the rest)
//! - a number goes through `rounds` rounds of `x = x * 6364136223846793005 + 1442695040888963407`, wrapping
//! - reply: `sum u64 | counted u32 | missing u32`: the wrapping sum, records counted, listed records that are not there
//! - errors: `NotFound` without the list record, `Invalid` when its value is no list
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const FORMAT: &str = "args: table u64, rounds u32, key of the list record (the rest)";
const LIST_FORMAT: &str = "the list record's value must be len u16, key, repeated";
/// Rounds between two yields: some microseconds of arithmetic.
const ROUNDS_PER_SLICE: u32 = 4096;

/// Sums up the records that the list record names.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, rounds, list_key) = parse_args(args).ok_or(Error::invalid(FORMAT))?;
    let list = db.get(table, list_key).await?.ok_or(Error::not_found("no list record under the key"))?;
    let keys = parse_key_list(list.value()).ok_or(Error::invalid(LIST_FORMAT))?;
    let (mut sum, mut counted, mut missing) = (0u64, 0u32, 0u32);
    for record in db.get_many(table, &keys).await? {
        match record {
            Some(record) => {
                sum = sum.wrapping_add(lcg_rounds(leading_u64(record.value()), rounds).await);
                counted += 1;
            }
            None => missing += 1,
        }
    }
    db.reply(&sum.to_le_bytes())?;
    db.reply(&counted.to_le_bytes())?;
    db.reply(&missing.to_le_bytes())
}

/// The number after `rounds` rounds of arithmetic; yields now and then.
async fn lcg_rounds(mut number: u64, rounds: u32) -> u64 {
    let mut left = rounds;
    while left > ROUNDS_PER_SLICE {
        number = lcg_slice(number, ROUNDS_PER_SLICE);
        left -= ROUNDS_PER_SLICE;
        yield_now().await;
    }
    lcg_slice(number, left)
}

fn lcg_slice(number: u64, rounds: u32) -> u64 {
    (0..rounds).fold(number, |x, _| x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
}

fn leading_u64(value: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(value) {
        *to = *from;
    }
    u64::from_le_bytes(bytes)
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

fn parse_args(args: &[u8]) -> Option<(TableId, u32, &[u8])> {
    let (table, rest) = args.split_first_chunk::<8>()?;
    let (rounds, key) = rest.split_first_chunk::<4>()?;
    Some((TableId(u64::from_le_bytes(*table)), u32::from_le_bytes(*rounds), key))
}

#[cfg(test)]
mod tests {
    use sandstorm_api::testing::TestStore;

    use super::*;

    fn args(table: TableId, rounds: u32, key: &[u8]) -> Vec<u8> {
        [&table.0.to_le_bytes()[..], &rounds.to_le_bytes(), key].concat()
    }

    fn list(keys: &[&str]) -> Vec<u8> {
        keys.iter().flat_map(|key| [&(key.len() as u16).to_le_bytes(), key.as_bytes()].concat()).collect()
    }

    fn reply(sum: u64, counted: u32, missing: u32) -> Result<Vec<u8>, Error> {
        Ok([&sum.to_le_bytes()[..], &counted.to_le_bytes(), &missing.to_le_bytes()].concat())
    }

    fn store() -> (TestStore, TableId) {
        let mut store = TestStore::new();
        let table = store.table("t");
        store.put(table, b"a", &1u64.to_le_bytes());
        store.put(table, b"b", &[&20u64.to_le_bytes()[..], b"payload"].concat());
        store.put(table, b"short", &[0x00, 0x01]);
        store.put(table, b"max", &u64::MAX.to_le_bytes());
        (store, table)
    }

    #[test]
    fn sums_what_is_there_and_counts_what_is_not() {
        let (mut store, table) = store();
        store.put(table, b"l", &list(&["a", "b", "short", "gone", "b"]));
        assert_eq!(store.invoke(run, &args(table, 0, b"l")), reply(1 + 20 + 256 + 20, 4, 1));
        store.put(table, b"l", &list(&["max", "b"]));
        assert_eq!(store.invoke(run, &args(table, 0, b"l")), reply(19, 2, 0));
        store.put(table, b"l", b"");
        assert_eq!(store.invoke(run, &args(table, 9, b"l")), reply(0, 0, 0));
    }

    #[test]
    fn long_arithmetic_yields_and_gives_what_one_go_gives() {
        let (mut store, table) = store();
        store.put(table, b"l", &list(&["b"]));
        store.interleave(false);
        for rounds in [1, ROUNDS_PER_SLICE, ROUNDS_PER_SLICE + 1, 10 * ROUNDS_PER_SLICE + 7] {
            assert_eq!(store.invoke(run, &args(table, rounds, b"l")), reply(lcg_slice(20, rounds), 1, 0));
            assert_eq!(store.polls(), 1 + u64::from((rounds - 1) / ROUNDS_PER_SLICE));
        }
    }

    #[test]
    fn a_missing_list_and_malformed_bytes_are_refused() {
        let (mut store, table) = store();
        assert_eq!(store.invoke(run, &args(table, 0, b"l")).unwrap_err().kind(), ErrorKind::NotFound);
        let whole = list(&["a", "bc"]);
        for cut in [1, 2, 4, whole.len() - 1] {
            store.put(table, b"l", &whole[..cut]);
            assert_eq!(store.invoke(run, &args(table, 0, b"l")), Err(Error::invalid(LIST_FORMAT)));
        }
        for short in 0..12 {
            assert_eq!(store.invoke(run, &[1; 12][..short]), Err(Error::invalid(FORMAT)));
        }
    }
}
