//! expect: refused macro
//! Assembly at the top of a file.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

core::arch::global_asm!(".globl wild", "wild:", "ret");

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
