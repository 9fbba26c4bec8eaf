//! expect: refused macro
//! Inline assembly.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

use core::arch::asm;

pub fn wild() {
    asm!("int3")
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
