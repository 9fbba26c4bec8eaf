//! expect: refused attribute
//! Arbitrary machine code: a naked function passes `forbid(unsafe_code)`.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[unsafe(naked)]
extern "C" fn wild() {
    core::arch::naked_asm!("mov rax, [16]", "ret")
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    wild();
    Ok(())
}
