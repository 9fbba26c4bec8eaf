//! expect: killed Panic
//! Slices a text inside of a character.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let text = String::from("ä");
    _db.reply(text[..1].as_bytes())
}
