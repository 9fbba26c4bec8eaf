//! expect: refused macro-definition
//! A macro that puts a keyword together.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

macro_rules! keyword {
    ($word:tt) => {
        $word { *(16 as *const u8) }
    };
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let byte = keyword!(unsafe);
    _db.reply(&[byte])
}
