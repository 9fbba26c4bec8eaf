//! expect: refused
//! An attribute that is not on the list, on a field and a parameter.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[allow(dead_code)]
struct S {
    #[link_name = "x"]
    field: u8,
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(b"x")
}
