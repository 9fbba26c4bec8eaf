//! expect: refused crate-attribute
//! Lifts another limit of the compiler.
#![type_length_limit = "1000000000"]
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
