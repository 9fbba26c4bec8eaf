//! expect: refused
//! A forbidden macro in the place of a type.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

type T = [u8; include_bytes!("/etc/passwd").len()];

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(&core::mem::size_of::<T>().to_le_bytes())
}
