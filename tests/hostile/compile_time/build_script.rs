//! expect: refused source
//! A build script: cargo is never run on a tenant's files.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}

//@ file: build.rs
fn main() {
    std::process::abort()
}
