//! expect: refused
//! A macro of its own under the name of a harmless one.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

macro_rules! format {
    ($($t:tt)*) => {
        core::include_str!("/etc/passwd")
    };
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(format!("").as_bytes())
}
