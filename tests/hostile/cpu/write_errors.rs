//! expect: failed or ok or killed Panic
//! A text whose formatting fails.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct D;
impl core::fmt::Display for D {
    fn fmt(&self, _: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        Err(core::fmt::Error)
    }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let text = D.to_string();
    db.reply(text.as_bytes())
}
