//! expect: refused extern
//! Asks the linker for a library.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[link(name = "c")]
unsafe extern "C" {
    safe fn getpid() -> i32;
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
