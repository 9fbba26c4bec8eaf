//! A record and its version, by typed values, for the comparison with `untyped_lookup.rs`.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

/// Which record.
pub struct Lookup {
    pub table: u64,
    pub key: Vec<u8>,
}

/// What is in it.
pub struct Found {
    pub version: u64,
    pub value: Vec<u8>,
}

/// Finds a record.
pub async fn lookup(db: Db<'_>, args: Lookup) -> Result<Found, Error> {
    let record = db.get(TableId(args.table), &args.key).await?.ok_or(Error::not_found("no such record"))?;
    Ok(Found { version: record.version(), value: record.value().to_vec() })
}
