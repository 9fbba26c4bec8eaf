//! expect: limit or compile-error
//! A constant that takes more memory than there is.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const BIG: [[u64; 1 << 16]; 1 << 14] = [[7; 1 << 16]; 1 << 14];

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(&BIG[args.len()][args.len()].to_le_bytes())
}
