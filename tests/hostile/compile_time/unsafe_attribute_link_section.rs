//! expect: refused unsafe
//! Puts a function pointer where the loader runs it.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[unsafe(link_section = ".init_array")]
static BEFORE_ALL: extern "C" fn() = before_all;
extern "C" fn before_all() {}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
