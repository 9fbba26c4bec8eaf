//! expect: refused crate-attribute
//! No core library, lang items of its own.
#![feature(no_core)]
#![no_core]
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
