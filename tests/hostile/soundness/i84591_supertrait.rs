//! expect: refused generic-trait
//! rust-lang/rust 84591: a higher-ranked bound passes to a supertrait without its implied bounds.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

trait Wide<'a, 'b, T: ?Sized, Proof>: Narrow<'a, 'b, T> {}

trait Narrow<'a, 'b, T: ?Sized> {
    fn convert(value: &'a T) -> &'b T;
}

impl<'a, 'b, T: ?Sized> Narrow<'a, 'b, T> for ()
where
    'a: 'b,
{
    fn convert(value: &'a T) -> &'b T {
        value
    }
}

impl<'a, 'b, T: ?Sized> Wide<'a, 'b, T, &'b &'a ()> for () {}

fn needs_narrow<'x, 'y, S: for<'a, 'b> Narrow<'a, 'b, T>, T: ?Sized>(value: &'x T) -> &'y T {
    S::convert(value)
}

fn extend<'x, 'y, S: for<'a, 'b> Wide<'a, 'b, T, &'b &'a ()>, T: ?Sized>(value: &'x T) -> &'y T {
    needs_narrow::<S, T>(value)
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let kept = extend::<(), str>(&String::from("gone at the end of this line"));
    _db.reply(kept.as_bytes())
}
