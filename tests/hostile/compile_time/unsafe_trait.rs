//! expect: refused unsafe
//! An unsafe trait.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub unsafe trait Promise {}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
