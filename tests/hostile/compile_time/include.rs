//! expect: refused macro
//! Code from a file that was not pushed.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

include!("/etc/hostname");

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
