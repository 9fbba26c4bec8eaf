//! expect: refused
//! The same through a module of our own that re-exports it.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

mod inner {
    pub use core::include_bytes as vec;
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(inner::vec!("/etc/passwd"))
}
