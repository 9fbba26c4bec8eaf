//! expect: refused raw-pointer
//! An address through casts of casts.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let x = 1u8;
    let n = &x as *const _ as *const [u8; 64] as usize;
    db.reply(&n.to_le_bytes())
}
