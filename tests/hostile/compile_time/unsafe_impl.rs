//! expect: refused unsafe
//! Claims that a cell may be shared.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Shared(core::cell::Cell<u8>);
unsafe impl Sync for Shared {}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
