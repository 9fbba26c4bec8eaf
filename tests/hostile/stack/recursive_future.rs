//! expect: killed StackOverflow or killed OutOfMemory
//! An async function that awaits itself, boxed.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

async fn deeper(depth: u64) -> u64 {
    let next: u64 = Box::pin(deeper(depth + 1)).await;
    next + 1
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    deeper(0).await;
    Ok(())
}
