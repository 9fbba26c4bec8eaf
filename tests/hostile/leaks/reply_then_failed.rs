//! expect: failed
//! Replies a lot and fails: the caller gets the error alone.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    db.reply(&[7; 60_000])?;
    Err(Error::new("never mind the reply"))
}
