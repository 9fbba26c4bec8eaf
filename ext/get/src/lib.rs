//! Replies with one record: the smallest extension that does something.
//!
//! - args: `table u64 | key` (integers little-endian, here and everywhere in `ext/`; the key is the rest)
//! - reply: the record's value
//! - errors: `NotFound` when there is no record under the key
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const FORMAT: &str = "args: table u64, key (the rest)";

/// Replies with the value under the key in `args`.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, key) = args.split_first_chunk::<8>().ok_or(Error::invalid(FORMAT))?;
    let table = TableId(u64::from_le_bytes(*table));
    let record = db.get(table, key).await?.ok_or(Error::not_found("no record under the key"))?;
    db.reply(record.value())
}

#[cfg(test)]
mod tests {
    use sandstorm_api::testing::TestStore;

    use super::*;

    #[test]
    fn replies_with_the_value_and_says_what_is_wrong_otherwise() {
        let mut store = TestStore::new();
        let table = store.table("t");
        store.put(table, b"k", b"v");
        store.put(table, b"", b"under the empty key");
        let args = |key: &[u8]| [&table.0.to_le_bytes(), key].concat();
        assert_eq!(store.invoke(run, &args(b"k")), Ok(b"v".to_vec()));
        assert_eq!(store.invoke(run, &args(b"")), Ok(b"under the empty key".to_vec()));
        assert_eq!(store.invoke(run, &args(b"nope")).unwrap_err().kind(), ErrorKind::NotFound);
        for short in 0..8 {
            assert_eq!(store.invoke(run, &[0; 8][..short]), Err(Error::invalid(FORMAT)));
        }
        assert_eq!(store.invoke(run, &[0xff; 9]).unwrap_err().kind(), ErrorKind::UnknownTable);
    }
}
