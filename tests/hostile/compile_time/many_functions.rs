//! expect: ok or limit or refused
//! Nine thousand functions.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

<<<9000*fn f{n}(x: u64) -> u64 {
    x ^ {n}
}
>>>pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(&f8999(args.len() as u64).to_le_bytes())
}
