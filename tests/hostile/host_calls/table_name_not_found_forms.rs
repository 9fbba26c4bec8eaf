//! expect: ok
//! Names that are none: empty, of zeros, with a path, of another case.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    for name in ["", "\0", "t\0", "T", "../t", "t/", " t", "t ", "ｔ"] {
        assert!(db.table(name).is_err());
    }
    db.reply(b"x")
}
