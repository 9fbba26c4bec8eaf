//! expect: refused manifest
//! Dependencies, as cargo would have them.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}

//@ file: extension.toml
name = "hostile"
[dependencies]
libc = "0.2"
