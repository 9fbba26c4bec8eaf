//! expect: refused address
//! A waker's text, in the panic of an expect_err.
#![no_std]
#![forbid(unsafe_code)]
use core::task::Waker;
use sandstorm_api::prelude::*;
pub async fn run(_: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let it: Result<Option<(Waker, u8)>, (u8, u16)> = Ok(Some((Waker::noop().clone(), 1)));
    let _ = it.expect_err("shown");
    Ok(())
}
