//! expect: refused
//! A static that changes.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

static mut COUNT: u64 = 0;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
