//! expect: refused unsafe
//! Exports the symbol that the server looks for.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[unsafe(export_name = "SANDSTORM_EXTENSION")]
pub static FAKE: [u64; 8] = [0; 8];

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
