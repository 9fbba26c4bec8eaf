//! A SHA-256 digest over a list of records, computed where they are.
//!
//! - the list record's value: `len u16 | key`, repeated; each key names a record
//! - args: `table u64 | key` (integers little-endian; the list record's key is the rest)
//! - reply: 32 bytes, SHA-256 of the values of the listed records one behind the other, in the list's order
//! - errors: `NotFound` without the list record or one of the records that it names (the text says which),
//!   `Invalid` when its value is no list
#![no_std]
#![forbid(unsafe_code)]

use hmac_sha256::Hash;
use sandstorm_api::prelude::*;

const FORMAT: &str = "args: table u64, key of the list record (the rest)";
const LIST_FORMAT: &str = "the list record's value must be len u16, key, repeated";
/// Bytes digested between two yields: some tens of microseconds.
const BYTES_PER_SLICE: usize = 16 << 10;

/// Replies with the digest of the records that the list record names.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, list_key) = args.split_first_chunk::<8>().ok_or(Error::invalid(FORMAT))?;
    let table = TableId(u64::from_le_bytes(*table));
    let list = db.get(table, list_key).await?.ok_or(Error::not_found("no list record under the key"))?;
    let keys = parse_key_list(list.value()).ok_or(Error::invalid(LIST_FORMAT))?;
    let mut digest = Hash::new();
    let mut left = BYTES_PER_SLICE;
    for (at, record) in db.get_many(table, &keys).await?.into_iter().enumerate() {
        let record = record.ok_or_else(|| Error::not_found(format!("record {at} of the list is not there")))?;
        for piece in record.value().chunks(BYTES_PER_SLICE) {
            if piece.len() > left {
                yield_now().await;
                left = BYTES_PER_SLICE;
            }
            left -= piece.len();
            digest.update(piece);
        }
    }
    db.reply(&digest.finalize())
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

#[cfg(test)]
mod tests {
    use sandstorm_api::testing::TestStore;

    use super::*;

    fn args(table: TableId, key: &[u8]) -> Vec<u8> {
        [&table.0.to_le_bytes()[..], key].concat()
    }

    fn list(keys: &[&str]) -> Vec<u8> {
        keys.iter().flat_map(|key| [&(key.len() as u16).to_le_bytes(), key.as_bytes()].concat()).collect()
    }

    #[test]
    fn digests_the_values_in_the_order_of_the_list() {
        let mut store = TestStore::new();
        let table = store.table("t");
        store.put(table, b"1", b"a");
        store.put(table, b"2", b"bc");
        store.put(table, b"l", &list(&["1", "2"]));
        // Of the standard: SHA-256 of "abc".
        let abc = [
            0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea, 0x41, 0x41, 0x40, 0xde, 0x5d, 0xae, 0x22, 0x23, 0xb0, 0x03,
            0x61, 0xa3, 0x96, 0x17, 0x7a, 0x9c, 0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad,
        ];
        assert_eq!(store.invoke(run, &args(table, b"l")), Ok(abc.to_vec()));
        store.put(table, b"l", &list(&["2", "1", "1"]));
        assert_eq!(store.invoke(run, &args(table, b"l")), Ok(Hash::hash(b"bcaa").to_vec()));
        store.put(table, b"l", b"");
        assert_eq!(store.invoke(run, &args(table, b"l")), Ok(Hash::hash(b"").to_vec()));
    }

    #[test]
    fn long_values_yield_and_give_what_one_go_gives() {
        let mut store = TestStore::new();
        let table = store.table("t");
        let whole: Vec<u8> = (0..300_000u32).map(|at| (at * 7 % 251) as u8).collect();
        store.put(table, b"1", &whole[..100_000]);
        store.put(table, b"2", &whole[100_000..100_001]);
        store.put(table, b"3", &whole[100_001..]);
        store.put(table, b"l", &list(&["1", "2", "3"]));
        store.interleave(false);
        assert_eq!(store.invoke(run, &args(table, b"l")), Ok(Hash::hash(&whole).to_vec()));
        assert!(store.polls() >= 300_000 / BYTES_PER_SLICE as u64);
    }

    #[test]
    fn what_is_missing_or_malformed_is_named() {
        let mut store = TestStore::new();
        let table = store.table("t");
        assert_eq!(store.invoke(run, &args(table, b"l")), Err(Error::not_found("no list record under the key")));
        store.put(table, b"1", b"a");
        store.put(table, b"l", &list(&["1", "gone"]));
        assert_eq!(store.invoke(run, &args(table, b"l")), Err(Error::not_found("record 1 of the list is not there")));
        store.put(table, b"l", &list(&["1", "2"])[..5]);
        assert_eq!(store.invoke(run, &args(table, b"l")), Err(Error::invalid(LIST_FORMAT)));
        assert_eq!(store.invoke(run, b"short"), Err(Error::invalid(FORMAT)));
    }
}
