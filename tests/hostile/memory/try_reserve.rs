//! expect: ok
//! Asks for too much, and takes no for an answer.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut polite = Vec::<u8>::new();
    let refused = polite.try_reserve_exact(usize::MAX / 4).is_err();
    _db.reply(&[u8::from(refused)])
}
