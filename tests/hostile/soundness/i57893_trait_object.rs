//! expect: refused generic-trait
//! rust-lang/rust 57893: two impls for one trait object, and a transmute between what they say.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

trait Object<U> {
    type Output;
}

impl<T: ?Sized, U> Object<U> for T {
    type Output = U;
}

fn through<T: ?Sized, U>(value: <T as Object<U>>::Output) -> U {
    value
}

fn transmute<T, U>(value: T) -> U {
    through::<dyn Object<U, Output = T>, U>(value)
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let wild: &'static u64 = transmute::<usize, &'static u64>(16);
    _db.reply(&wild.to_le_bytes())
}
