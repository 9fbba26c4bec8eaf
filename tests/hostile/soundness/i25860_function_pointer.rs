//! expect: refused nested-lifetime
//! rust-lang/rust 25860: implied bounds are lost when a function becomes a pointer.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

static UNIT: &'static &'static () = &&();

fn witness<'a, 'b, T: ?Sized>(_: &'a &'b (), value: &'b T) -> &'a T {
    value
}

fn extend<'b, T: ?Sized>(value: &'b T) -> &'static T {
    let forget: for<'x> fn(_, &'x T) -> &'static T = witness;
    forget(UNIT, value)
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let kept = extend(&String::from("gone at the end of this line"));
    _db.reply(kept.as_bytes())
}
