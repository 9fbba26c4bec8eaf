//! expect: refused
//! A forbidden macro three harmless ones deep.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(format!("{}", vec![format!("{:?}", matches!(include_str!("/etc/passwd"), _))].len()).as_bytes())
}
