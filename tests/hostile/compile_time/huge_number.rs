//! expect: refused depth
//! A number of four hundred thousand digits: what reads it takes time in the square of that.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let n = <<<400000*9>>>u128;
    db.reply(&n.to_le_bytes())
}
