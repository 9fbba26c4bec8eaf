//! expect: refused extern-crate
//! The whole standard library: files, sockets, threads.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

extern crate std;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let text = std::fs::read("/etc/passwd").map_err(|_| "no file")?;
    _db.reply(&text)
}
