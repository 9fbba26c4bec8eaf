//! expect: refused source
//! A file with an absolute path.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}

//@ file: /tmp/escaped.rs
pub fn out() {}
