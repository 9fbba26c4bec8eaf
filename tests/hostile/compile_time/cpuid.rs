//! expect: refused
//! Asks the processor who it is: safe to call on this compiler.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let leaf = core::arch::x86_64::__cpuid(0);
    _db.reply(&leaf.ebx.to_le_bytes())
}
