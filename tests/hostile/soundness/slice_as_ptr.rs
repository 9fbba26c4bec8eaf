//! expect: refused address
//! An address by a safe method: it tells where, and safe code cannot follow it.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(&(args.as_ptr() as usize).to_le_bytes())
}
