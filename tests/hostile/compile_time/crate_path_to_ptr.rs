//! expect: refused or compile-error
//! Pointers through the crate of the API.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

use sandstorm_api::prelude::core as c;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(&(c::ptr::null::<u8>() as usize).to_le_bytes())
}
