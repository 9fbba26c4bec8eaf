//! expect: refused path
//! The binary interface between server and library.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let call = sandstorm_api::abi::HostCalls;
    Ok(())
}
