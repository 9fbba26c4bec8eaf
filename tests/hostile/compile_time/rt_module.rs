//! expect: refused path
//! The wrapper's own parts.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

use sandstorm_api::rt;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
