//! expect: limit or compile-error or ok or refused
//! An iterator of sixty adapters.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let sum: usize = args.iter().map(|b| usize::from(*b))<<<30*.map(|x| x ^ {n}).filter(|x| *x != 3)>>>.sum();
    db.reply(&sum.to_le_bytes())
}
