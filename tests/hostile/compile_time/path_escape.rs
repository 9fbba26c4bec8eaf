//! expect: refused source
//! A file that would lie outside of its folder.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}

//@ file: src/../../escaped.rs
pub fn out() {}
