//! expect: refused attribute
//! A module from a file that was not pushed.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[path = "/etc/hostname"]
mod stolen;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
