//! expect: refused impl-parameter
//! rust-lang/rust 84366: a closure type is static although its return type is not.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

trait Returns {
    type Out;
}

impl<R, F: Fn() -> R> Returns for F {
    type Out = R;
}

fn boxed<T: Returns + 'static>(_: &T, value: T::Out) -> Box<dyn core::fmt::Display>
where
    T::Out: core::fmt::Display,
{
    Box::new(value)
}

fn forget<'a>(value: &'a str) -> Box<dyn core::fmt::Display> {
    let witness = || -> &'a str { "" };
    boxed(&witness, value)
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let shown = {
        let gone = String::from("gone at the end of this block");
        forget(&gone)
    };
    _db.reply(shown.to_string().as_bytes())
}
