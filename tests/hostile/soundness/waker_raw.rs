//! expect: ok or refused
//! Names what a waker of its own is made of, which takes unsafe code.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

use core::task::{RawWaker, RawWakerVTable, Waker};

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let _: Option<RawWakerVTable> = None;
    let _: Option<RawWaker> = None;
    let w = Waker::noop();
    db.reply(&[w.will_wake(Waker::noop()) as u8])
}
