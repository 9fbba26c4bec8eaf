//! expect: compile-error
//! rust-lang/rust 118876: a boxed closure forgets a bound of its type.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Bounded<'a, 'b: 'static, T>(&'a T, [&'b (); 0]);

fn extend<T>(input: &T) -> &'static T {
    let wrap: Box<dyn FnOnce(&T) -> Bounded<'static, '_, T>> = Box::new(|x| Bounded(x, []));
    wrap(input).0
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let kept = extend(&7u64);
    _db.reply(&kept.to_le_bytes())
}
