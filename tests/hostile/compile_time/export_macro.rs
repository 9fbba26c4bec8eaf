//! expect: refused macro
//! The wrapper's export, a second time.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}

sandstorm_api::export!(run, 0);
