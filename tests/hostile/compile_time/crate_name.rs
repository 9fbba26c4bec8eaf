//! expect: refused crate-attribute
//! Takes another crate's name.
#![crate_name = "sandstorm_api"]
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
