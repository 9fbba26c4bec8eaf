//! expect: refused std
//! Uses std by its path.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let text = std::env::var("HOME").map_err(|_| "none")?;
    _db.reply(text.as_bytes())
}
