//! expect: refused or compile-error
//! A lazy static that records arguments.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

use core::cell::LazyCell;

static LAZY: LazyCell<u64> = LazyCell::new(|| 1);

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
