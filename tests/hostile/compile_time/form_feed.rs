//! expect: refused
//! Forbidden tokens apart by odd white space.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(include_str! ("/etc/passwd").as_bytes())
}
