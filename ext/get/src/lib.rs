//! Replies with the record whose key is given: `args` is the table id (u64, little-endian) and the key.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

/// Replies with the value under the key in `args`; `NotFound` when there is none.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, key) =
        args.split_first_chunk::<8>().ok_or(Error::invalid("args: table id (8 bytes, little-endian), key"))?;
    let record = db.get(TableId(u64::from_le_bytes(*table)), key).await?.ok_or(Error::not_found("no such record"))?;
    db.reply(record.value())
}
