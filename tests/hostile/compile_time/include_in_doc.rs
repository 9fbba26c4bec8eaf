//! expect: refused attribute
//! The same in a doc attribute.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[doc = include_str!("/etc/passwd")]
pub struct Documented;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
