//! expect: compile-error or refused
//! A `run` that wants to keep its database for ever.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'static>, _args: &'static [u8]) -> Result<(), Error> {
    Ok(())
}
