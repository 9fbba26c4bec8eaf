//! Follows a chain of records to a given depth: what costs a client one round trip a record costs one in all.
//!
//! - a record's value starts with `next_len u8 | next`: the key of the next record; whatever follows is its payload
//! - args: `table u64 | depth u32 | key` (integers little-endian; the key of the first record is the rest)
//! - reply: the whole value of the record at `depth` (1: the first record itself)
//! - errors: `NotFound` where the chain breaks, with the hop; `Invalid` for a depth of 0 or a value that is no link
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const FORMAT: &str = "args: table u64, depth u32 (at least 1), key (the rest)";

/// Reads `depth` records, each named by the one before, and replies with the last.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, depth, mut key) = parse_args(args).ok_or(Error::invalid(FORMAT))?;
    for hop in 1..depth {
        let value = read_link(db, table, key, hop).await?;
        key = next_key(value).ok_or_else(|| malformed_link(hop))?;
    }
    db.reply(read_link(db, table, key, depth).await?)
}

async fn read_link<'a>(db: Db<'a>, table: TableId, key: &[u8], hop: u32) -> Result<&'a [u8], Error> {
    match db.get(table, key).await? {
        Some(record) => Ok(record.value()),
        None => Err(Error::not_found(format!("the chain breaks at hop {hop}: no such record"))),
    }
}

fn next_key(value: &[u8]) -> Option<&[u8]> {
    let (len, rest) = value.split_first()?;
    rest.get(..usize::from(*len))
}

fn malformed_link(hop: u32) -> Error {
    Error::invalid(format!("the record at hop {hop} is no link: its value must start with next_len u8, next key"))
}

fn parse_args(args: &[u8]) -> Option<(TableId, u32, &[u8])> {
    let (table, rest) = args.split_first_chunk::<8>()?;
    let (depth, key) = rest.split_first_chunk::<4>()?;
    let depth = u32::from_le_bytes(*depth);
    (depth > 0).then_some((TableId(u64::from_le_bytes(*table)), depth, key))
}

#[cfg(test)]
mod tests {
    use sandstorm_api::testing::TestStore;

    use super::*;

    fn args(table: TableId, depth: u32, key: &str) -> Vec<u8> {
        [&table.0.to_le_bytes()[..], &depth.to_le_bytes(), key.as_bytes()].concat()
    }

    fn link(next: &str, payload: &str) -> Vec<u8> {
        [&[next.len() as u8][..], next.as_bytes(), payload.as_bytes()].concat()
    }

    fn chain(len: u32) -> (TestStore, TableId) {
        let mut store = TestStore::new();
        let table = store.table("t");
        for at in 0..len {
            store.put(table, format!("k{at}").as_bytes(), &link(&format!("k{}", at + 1), &format!("payload {at}")));
        }
        (store, table)
    }

    #[test]
    fn depth_n_reads_n_records() {
        let (mut store, table) = chain(20);
        for depth in 1..=20 {
            let last = link(&format!("k{depth}"), &format!("payload {}", depth - 1));
            assert_eq!(store.invoke(run, &args(table, depth, "k0")), Ok(last));
            assert_eq!(store.reads(), u64::from(depth));
        }
    }

    #[test]
    fn a_ring_is_followed_round_and_round() {
        let (mut store, table) = chain(2);
        store.put(table, b"k1", &link("k0", "end"));
        assert_eq!(store.invoke(run, &args(table, 1000, "k0")), Ok(link("k0", "end")));
    }

    #[test]
    fn a_break_names_its_hop_and_malformed_args_the_format() {
        let (mut store, table) = chain(3);
        let error = store.invoke(run, &args(table, 5, "k0")).unwrap_err();
        assert_eq!((error.kind(), error.text()), (ErrorKind::NotFound, "the chain breaks at hop 4: no such record"));
        for no_link in [&b""[..], b"\x05four"] {
            store.put(table, b"k1", no_link);
            let error = store.invoke(run, &args(table, 3, "k0")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.text().starts_with("the record at hop 2 is no link"));
            assert_eq!(
                store.invoke(run, &args(table, 2, "k0")),
                Ok(no_link.to_vec()),
                "the last one need not be a link"
            );
        }
        assert_eq!(store.invoke(run, &args(table, 0, "k0")), Err(Error::invalid(FORMAT)));
        for short in 0..12 {
            assert_eq!(store.invoke(run, &[1; 12][..short]), Err(Error::invalid(FORMAT)));
        }
    }
}
