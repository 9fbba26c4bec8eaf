//! expect: refused cfg
//! The same behind a condition.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[cfg_attr(all(), path = "/etc/hostname")]
mod stolen;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
