//! expect: refused macro-definition
//! A macro inside of a function body.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    macro_rules! inner {
        () => {
            1
        };
    }
    _db.reply(&[inner!()])
}
