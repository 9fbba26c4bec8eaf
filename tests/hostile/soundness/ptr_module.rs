//! expect: refused path
//! The safe functions of the module of pointers.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let p = core::ptr::from_ref(args);
    let q = core::ptr::eq(p, p);
    db.reply(&[q as u8])
}
