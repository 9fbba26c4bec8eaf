//! expect: refused crate-attribute
//! Lifts the compiler's limit.
#![recursion_limit = "100000000"]
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
