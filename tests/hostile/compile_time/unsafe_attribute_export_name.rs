//! expect: refused attribute
//! Exports the symbol that the server looks for.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[unsafe(export_name = "SANDSTORM_EXTENSION")]
pub fn fake() {}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
