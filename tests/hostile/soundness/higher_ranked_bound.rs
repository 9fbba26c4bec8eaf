//! expect: refused for-lifetimes
//! A higher-ranked bound.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

fn pick<F>(f: F, x: &[u8]) -> &[u8]
where
    F: for<'a> Fn(&'a [u8]) -> &'a [u8],
{
    f(x)
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(pick(|x| x, _args))
}
