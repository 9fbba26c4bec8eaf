//! expect: compile-error
//! Wants to keep its arguments beyond the call.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let kept: &'static [u8] = _args;
    _db.reply(kept)
}
