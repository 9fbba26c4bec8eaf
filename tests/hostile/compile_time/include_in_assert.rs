//! expect: refused macro
//! The same as the text of an assertion.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    assert!(_args.is_empty(), "{}", include_str!("/etc/passwd"));
    Ok(())
}
