//! expect: refused special
//! A macro of the newer kind.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub macro newer() {}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
