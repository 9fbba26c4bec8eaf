//! expect: failed UnknownTable
//! A table that there is not.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let record = db.get(TableId(0xdead_beef), b"k").await?;
    db.reply(&[u8::from(record.is_some())])
}
