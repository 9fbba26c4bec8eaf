//! expect: killed Panic
//! Panics with a text of a mebibyte: it is cut.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let text = "x".repeat(1 << 20);
    panic!("{text}")
}
