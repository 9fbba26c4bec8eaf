//! expect: refused nested-lifetime
//! rust-lang/rust 25860 with a bound in place of a pointer.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

fn witness<'a, 'b>(_: &'a &'b (), value: &'b str) -> &'a str {
    value
}

fn call<'x>(f: impl for<'b> Fn(&'static &'b (), &'b str) -> &'static str, value: &'x str) -> &'static str {
    f(&&(), value)
}

fn extend(value: &str) -> &'static str {
    call(witness, value)
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let kept = extend(&String::from("gone at the end of this line"));
    _db.reply(kept.as_bytes())
}
