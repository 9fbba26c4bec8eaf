//! expect: refused or compile-error
//! A constant that holds what is made at run time.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const X: core::cell::RefCell<Vec<u8>> = core::cell::RefCell::new(Vec::new());
const R: &core::cell::RefCell<Vec<u8>> = &X;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    R.borrow_mut().push(1);
    db.reply(&[R.borrow().len() as u8])
}
