//! expect: refused nested-lifetime
//! rust-lang/rust 25860 for mutable references: two of them to one place.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const UNIT: &&() = &&();

fn witness<'a, 'b, T: ?Sized>(_: &'a &'b (), value: &'b mut T) -> &'a mut T {
    value
}

fn extend<'b, T: ?Sized>(value: &'b mut T) -> &'static mut T {
    let forget: for<'x> fn(_, &'x mut T) -> &'static mut T = witness;
    forget(UNIT, value)
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut byte = 1u8;
    let kept = extend(&mut byte);
    byte = 2;
    *kept = 3;
    _db.reply(&[byte])
}
