//! expect: refused crate-attribute
//! A test runner of its own.
#![feature(custom_test_frameworks)]
#![test_runner(run_all)]
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
