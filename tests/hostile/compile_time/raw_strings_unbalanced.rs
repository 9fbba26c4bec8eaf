//! expect: refused or ok or compile-error
//! Raw strings that end where a careless reader does not look.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const A: &str = r##""# ; include_str!("x"); r#""##;
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(A.as_bytes())
}
