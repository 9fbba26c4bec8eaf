//! Reads a short range of numbered records: a first key, and how many from there on.
//!
//! It needs no ordered table: a range can be read wherever its keys can be told, as those that end in a number. The
//! next key after `k0099` is `k0100`; as long as no digit is lacking, that is also the order of their bytes.
//!
//! - args: `table u64 | count u32 | first key` (integers little-endian; the first key is the rest), count 1 to 1000;
//!   the key ends in at least one decimal digit
//! - reply: for each of the `count` keys in order `value_len u32 | value`, and 4294967295 in place of both where there
//!   is no record. It ends early behind the last key that the digits can write
//! - errors: `Invalid` for malformed args, `TooLarge` when the values do not fit into a reply
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const FORMAT: &str = "args: table u64, count u32 (1 to 1000), first key (the rest; it ends in a decimal digit)";
const MAX_COUNT: u32 = 1000;
/// Stands where there is no record.
const NO_RECORD: u32 = u32::MAX;

/// Replies with the records of the range.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, count, first) = parse_args(args).ok_or(Error::invalid(FORMAT))?;
    let mut keys = Vec::with_capacity(count as usize);
    let mut key = Some(first.to_vec());
    while let Some(here) = key.take().filter(|_| keys.len() < count as usize) {
        key = next_numbered_key(&here);
        keys.push(here);
    }
    for record in db.get_many(table, &keys).await? {
        match record {
            Some(record) => {
                db.reply(&(record.value().len() as u32).to_le_bytes())?;
                db.reply(record.value())?;
            }
            None => db.reply(&NO_RECORD.to_le_bytes())?,
        }
    }
    Ok(())
}

/// The key whose number is one more; `None` when all its digits are nines.
fn next_numbered_key(key: &[u8]) -> Option<Vec<u8>> {
    let mut key = key.to_vec();
    for digit in key.iter_mut().rev() {
        match *digit {
            b'9' => *digit = b'0',
            b'0'..=b'8' => {
                *digit += 1;
                return Some(key);
            }
            _ => return None,
        }
    }
    None
}

fn parse_args(args: &[u8]) -> Option<(TableId, u32, &[u8])> {
    let (table, rest) = args.split_first_chunk::<8>()?;
    let (count, key) = rest.split_first_chunk::<4>()?;
    let count = u32::from_le_bytes(*count);
    let numbered = key.last().is_some_and(u8::is_ascii_digit);
    (numbered && (1..=MAX_COUNT).contains(&count)).then_some((TableId(u64::from_le_bytes(*table)), count, key))
}

#[cfg(test)]
mod tests {
    use sandstorm_api::testing::TestStore;

    use super::*;

    fn args(table: TableId, count: u32, key: &[u8]) -> Vec<u8> {
        [&table.0.to_le_bytes()[..], &count.to_le_bytes(), key].concat()
    }

    fn reply(values: &[Option<&str>]) -> Vec<u8> {
        let one = |value: &Option<&str>| match value {
            Some(value) => [&(value.len() as u32).to_le_bytes()[..], value.as_bytes()].concat(),
            None => NO_RECORD.to_le_bytes().to_vec(),
        };
        values.iter().flat_map(one).collect()
    }

    #[test]
    fn ranges_go_over_carries_and_gaps_and_end_with_the_digits() {
        let mut store = TestStore::new();
        let table = store.table("t");
        for (key, value) in [("k098", "a"), ("k099", "bb"), ("k100", ""), ("k102", "d"), ("k999", "end")] {
            store.put(table, key.as_bytes(), value.as_bytes());
        }
        let mut call = |count, key: &str| store.invoke(run, &args(table, count, key.as_bytes())).unwrap();
        assert_eq!(call(5, "k098"), reply(&[Some("a"), Some("bb"), Some(""), None, Some("d")]));
        assert_eq!(call(1, "k101"), reply(&[None]));
        assert_eq!(call(10, "k999"), reply(&[Some("end")]));
    }

    #[test]
    fn what_is_no_range_is_refused() {
        let mut store = TestStore::new();
        let table = store.table("t");
        for (count, key) in [(0, "k1"), (1001, "k1"), (1, ""), (1, "k")] {
            let refused = store.invoke(run, &args(table, count, key.as_bytes()));
            assert_eq!(refused, Err(Error::invalid(FORMAT)), "{count} {key}");
        }
        for short in 0..12 {
            assert_eq!(store.invoke(run, &[1; 12][..short]), Err(Error::invalid(FORMAT)));
        }
    }
}
