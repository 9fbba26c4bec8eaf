//! expect: refused extern-crate
//! Code that would run in the compiler.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

extern crate proc_macro;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
