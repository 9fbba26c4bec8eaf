//! expect: refused crate-attribute
//! Asks for another kind of output.
#![crate_type = "proc-macro"]
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
