//! expect: refused or limit
//! A manifest that nests ten thousand deep.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(b"x")
}

//@ file: extension.toml
name = "hostile"
libraries = <<<2000*[>>><<<2000*]>>>
