//! expect: compile-error or refused or ok
//! Text that reads the other way round in an editor.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    // ‮ } ; "x"b(ylper.bd ⁦
    db.reply("‮".as_bytes())
}
