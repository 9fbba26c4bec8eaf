//! expect: ok or limit or refused or compile-error
//! A match whose exhaustiveness is costly.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let [a, b, c, d, e, f, g, h, i, j] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|at: usize| _args.get(at).is_some());
    let kind = match (a, b, c, d, e, f, g, h, i, j) {
        (true, _, _, _, _, _, _, _, _, _) => 0u8,
        (_, true, _, _, _, _, _, _, _, _) => 1u8,
        (_, _, true, _, _, _, _, _, _, _) => 2u8,
        (_, _, _, true, _, _, _, _, _, _) => 3u8,
        (_, _, _, _, true, _, _, _, _, _) => 4u8,
        (_, _, _, _, _, true, _, _, _, _) => 5u8,
        (_, _, _, _, _, _, true, _, _, _) => 6u8,
        (_, _, _, _, _, _, _, true, _, _) => 7u8,
        (_, _, _, _, _, _, _, _, true, _) => 8u8,
        (_, _, _, _, _, _, _, _, _, true) => 9u8,
        _ => 10,
    };
    _db.reply(&[kind])
}
