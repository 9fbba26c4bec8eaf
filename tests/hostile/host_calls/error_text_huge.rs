//! expect: failed
//! An error with a text of a mebibyte.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Err(Error::new("x".repeat(1 << 20)))
}
