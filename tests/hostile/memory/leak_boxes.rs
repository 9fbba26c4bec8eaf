//! expect: killed OutOfMemory
//! Leaks on purpose: the arena goes whole all the same.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    loop {
        core::mem::forget(Box::new([1u8; 1024]));
    }
}
