//! What `typed_lookup.rs` does, with the same bytes read and written by hand.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

/// args: fingerprint u32, table u64, key_len u32, key; reply: version u64, value_len u32, value.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, key) = parse(args).ok_or(Error::invalid("args: fingerprint u32, table u64, key_len u32, key"))?;
    let record = db.get(table, key).await?.ok_or(Error::not_found("no such record"))?;
    db.reply(&record.version().to_le_bytes())?;
    db.reply(&(record.value().len() as u32).to_le_bytes())?;
    db.reply(record.value())
}

fn parse(args: &[u8]) -> Option<(TableId, &[u8])> {
    let (_, rest) = args.split_first_chunk::<4>()?;
    let (table, rest) = rest.split_first_chunk::<8>()?;
    let (len, key) = rest.split_first_chunk::<4>()?;
    (key.len() == u32::from_le_bytes(*len) as usize).then_some((TableId(u64::from_le_bytes(*table)), key))
}
