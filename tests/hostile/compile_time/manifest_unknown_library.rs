//! expect: refused libraries
//! A library that the operator has not allowed.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}

//@ file: extension.toml
name = "hostile"
libraries = ["libc"]
