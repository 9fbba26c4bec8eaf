//! expect: refused cfg
//! An attribute that a condition brings in.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[cfg_attr(not(test), unsafe(no_mangle))]
pub fn memset() {}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
