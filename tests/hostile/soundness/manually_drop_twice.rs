//! expect: compile-error
//! Drops one thing twice.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let mut s = core::mem::ManuallyDrop::new(String::from("x"));
    core::mem::ManuallyDrop::drop(&mut s);
    core::mem::ManuallyDrop::drop(&mut s);
    Ok(())
}
