//! expect: refused extern
//! A foreign function.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

unsafe extern "C" {
    safe fn getpid() -> i32;
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
