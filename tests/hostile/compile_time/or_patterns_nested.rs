//! expect: limit or compile-error or ok
//! Alternatives inside of each other multiply: a guard is compiled once for each.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

fn f(x: (u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8), n: usize) -> u8 {
    match x {
        <<<40*(0 | 2 | 4 | {n}, 1 | 3, 2 | 9 | {n}, 3 | 8, 4 | 7, 5 | 6, 6 | 1, 7 | 2, 8 | {n}, 9 | 3, 1 | 4, 1 | 5) if n > {n} => {n},
>>>
        _ => 0,
    }
}
pub async fn run(db: Db<'_>, a: &[u8]) -> Result<(), Error> { db.reply(&[f((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 1), a.len())]) }
