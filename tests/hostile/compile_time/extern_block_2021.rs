//! expect: refused extern
//! A foreign function in the spelling of edition 2021.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

extern "C" {
    fn getpid() -> i32;
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
