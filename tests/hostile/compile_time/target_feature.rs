//! expect: refused attribute
//! Instructions that the processor may not have.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[target_feature(enable = "avx512f")]
pub fn wide() {}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
