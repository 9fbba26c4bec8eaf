//! expect: refused or ok or compile-error or limit
//! Comments inside of comments, a hundred thousand deep.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

<<<100000*/*>>><<<100000**/>>>
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(b"x")
}
