//! expect: refused source
//! A cargo configuration with a runner of its own.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}

//@ file: .cargo/config.toml
[build]
rustc-wrapper = "/bin/sh"
