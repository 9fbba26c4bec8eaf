//! expect: killed OutOfMemory
//! Allocates for ever in the smallest pieces.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut kept = Vec::new();
    loop {
        kept.push(Box::new(1u8));
    }
}
