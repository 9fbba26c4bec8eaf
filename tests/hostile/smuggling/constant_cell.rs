//! expect: ok
//! A constant with a cell inside: each use is a new one.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[allow(clippy::declare_interior_mutable_const)]
const CELL: core::cell::Cell<u8> = core::cell::Cell::new(0);

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    CELL.set(7);
    if CELL.get() == 0 { Ok(()) } else { Err(Error::new("a constant kept what was written to it")) }
}
