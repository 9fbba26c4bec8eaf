//! expect: refused manifest
//! A name that is a path.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}

//@ file: extension.toml
name = "../../etc/cron.d/evil"
