//! expect: refused
//! Makes a number of an address.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let address = _args as *const [u8] as *const u8 as usize;
    _db.reply(&address.to_le_bytes())
}
