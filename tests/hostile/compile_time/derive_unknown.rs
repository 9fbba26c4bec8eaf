//! expect: refused
//! A derive that we do not know.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[derive(Evil)]
struct Thing;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
