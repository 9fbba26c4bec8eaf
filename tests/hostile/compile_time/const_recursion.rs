//! expect: limit or compile-error
//! A recursion that the compiler would have to run.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const fn fib(n: u64) -> u64 {
    if n < 2 { n } else { fib(n - 1) + fib(n - 2) }
}
const DEEP: u64 = fib(80);

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(&DEEP.to_le_bytes())
}
