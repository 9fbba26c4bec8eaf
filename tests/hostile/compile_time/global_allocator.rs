//! expect: refused
//! An allocator of its own.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Mine;
#[global_allocator]
static ALLOCATOR: Mine = Mine;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
