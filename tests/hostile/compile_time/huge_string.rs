//! expect: ok or refused or limit
//! A text of four hundred kilobytes.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let text = "<<<400000*x>>>";
    db.reply(&text.as_bytes()[..1])
}
