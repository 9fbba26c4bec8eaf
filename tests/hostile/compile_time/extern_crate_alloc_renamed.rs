//! expect: refused extern-crate
//! Renames a crate so that a path says something else.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

extern crate alloc as core2;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
