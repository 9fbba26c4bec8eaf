//! expect: refused crate-attribute
//! An attribute that no extension needs.
#![no_main]
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
