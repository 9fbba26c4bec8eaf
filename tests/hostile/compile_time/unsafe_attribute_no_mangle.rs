//! expect: refused attribute
//! Exports a symbol that others call by name.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[unsafe(no_mangle)]
pub extern "C" fn memcpy() {}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
