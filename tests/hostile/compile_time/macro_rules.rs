//! expect: refused macro-definition
//! A macro: the checker cannot see what it expands to.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

macro_rules! harmless {
    () => {};
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    harmless!();
    Ok(())
}
