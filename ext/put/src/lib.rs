//! Writes one record.
//!
//! - args: `table u64 | key_len u32 | key | value` (integers little-endian; the value is the rest)
//! - reply: the record's new version, u64
//! - errors: `OutOfMemory` when the table is full, `TooLarge` for a key or value over its limit
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const FORMAT: &str = "args: table u64, key_len u32, key, value (the rest)";

/// Writes the value in `args` under the key in `args`.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, key, value) = parse_args(args).ok_or(Error::invalid(FORMAT))?;
    let version = db.put(table, key, value).await?;
    db.reply(&version.to_le_bytes())
}

fn parse_args(args: &[u8]) -> Option<(TableId, &[u8], &[u8])> {
    let (table, rest) = args.split_first_chunk::<8>()?;
    let (key_len, rest) = rest.split_first_chunk::<4>()?;
    let (key, value) = rest.split_at_checked(u32::from_le_bytes(*key_len) as usize)?;
    Some((TableId(u64::from_le_bytes(*table)), key, value))
}

#[cfg(test)]
mod tests {
    use sandstorm_api::testing::TestStore;

    use super::*;

    fn args(table: TableId, key: &[u8], value: &[u8]) -> Vec<u8> {
        [&table.0.to_le_bytes()[..], &(key.len() as u32).to_le_bytes(), key, value].concat()
    }

    #[test]
    fn writes_and_replies_with_the_version() {
        let mut store = TestStore::new();
        let table = store.table("t");
        let first = store.invoke(run, &args(table, b"k", b"one")).unwrap();
        let second = store.invoke(run, &args(table, b"k", b"")).unwrap();
        let record = store.record(table, b"k").unwrap();
        assert_eq!((record.value(), record.version().to_le_bytes().to_vec()), (&b""[..], second.clone()));
        assert!(u64::from_le_bytes(first.try_into().unwrap()) < u64::from_le_bytes(second.try_into().unwrap()));
    }

    #[test]
    fn a_full_table_and_malformed_args_are_refused() {
        let mut store = TestStore::new();
        let table = store.table("t");
        store.limit_bytes(3);
        assert_eq!(store.invoke(run, &args(table, b"k", b"123")).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert!(store.is_empty(table));
        let whole = args(table, b"key", b"");
        for short in 0..whole.len() {
            assert_eq!(store.invoke(run, &whole[..short]), Err(Error::invalid(FORMAT)));
        }
    }
}
