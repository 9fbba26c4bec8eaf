//! expect: refused or compile-error
//! A reference to a constant that is written once.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let cell: &'static core::cell::OnceCell<u32> = const { &core::cell::OnceCell::new() };
    let _ = cell.set(7);
    db.reply(&[cell.get().is_some() as u8])
}
