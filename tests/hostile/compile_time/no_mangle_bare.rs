//! expect: refused attribute
//! The same in the spelling of older editions.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[no_mangle]
pub fn memset() {}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
