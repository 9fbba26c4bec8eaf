//! expect: ok
//! Forgets all that it made.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    for _ in 0..100 {
        core::mem::forget(vec![1u8; 1024]);
        core::mem::forget(String::from("never freed"));
    }
    Ok(())
}
