//! expect: refused
//! A derive by a path.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[derive(evil::Clone)]
struct Thing;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
