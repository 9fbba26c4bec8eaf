//! expect: killed OutOfMemory
//! One vector that grows a byte at a time.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut bytes = Vec::new();
    loop {
        bytes.push(1u8);
        core::hint::black_box(&bytes);
    }
}
