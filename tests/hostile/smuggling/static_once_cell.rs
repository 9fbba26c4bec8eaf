//! expect: refused or compile-error
//! A cell that is written once, in a static.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

use core::cell::OnceCell;

static ONCE: OnceCell<u64> = OnceCell::new();

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(ONCE.get_or_init(|| 7).to_string().as_bytes())
}
