//! expect: refused attribute
//! Puts its code where the loader looks for what to run first.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[unsafe(link_section = ".init_array")]
pub fn before_all() {}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
