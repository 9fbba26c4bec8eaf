//! expect: refused or compile-error
//! A thread-local variable.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[thread_local]
static MINE: core::cell::Cell<u64> = core::cell::Cell::new(0);

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
