//! expect: refused attribute
//! A panic handler of its own.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[panic_handler]
fn handler(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
