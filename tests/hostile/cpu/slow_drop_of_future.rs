//! expect: killed TotalBudget
//! What it holds across a yield has a drop that never ends; the server drops it after a kill, or must not.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Slow;

impl Drop for Slow {
    fn drop(&mut self) {
        loop {}
    }
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let slow = Slow;
    loop {
        yield_now().await;
        core::hint::black_box(&slow);
    }
}
