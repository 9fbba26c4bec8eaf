//! expect: ok or limit or refused
//! A match of three thousand arms over a string.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let kind = match _args {
        <<<3000*b"key number {n}" => {n}u32, >>>
        _ => 0,
    };
    _db.reply(&kind.to_le_bytes())
}
