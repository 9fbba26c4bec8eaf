//! expect: limit or compile-error
//! A function that calls itself with ever larger types.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

fn grow<T: Copy>(value: T, depth: u64) -> u64 {
    if depth > 1_000_000 { depth } else { grow((value, value), depth + 1) }
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    grow((), 0);
    Ok(())
}
