//! expect: refused extern
//! A function with another calling convention.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub extern "C" fn called_from_elsewhere() {}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
