//! expect: killed Panic
//! Borrows a cell twice.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let cell = core::cell::RefCell::new(1u8);
    let first = cell.borrow_mut();
    let second = cell.borrow_mut();
    _db.reply(&[*first, *second])
}
