//! expect: refused or limit or compile-error
//! A hundred thousand parentheses: a parser that recurses falls over.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let x = <<<100000*(>>>1<<<100000*)>>>;
    _db.reply(&[x])
}
