//! expect: compile-error or refused
//! A `run` that takes a pointer in place of its arguments.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: *mut u8, _args: usize) -> Result<(), Error> {
    Ok(())
}
