//! expect: compile-error
//! A type larger than an address space.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let x: Option<[[u64; usize::MAX >> 4]; 1024]> = None;
    db.reply(&[x.is_some() as u8])
}
