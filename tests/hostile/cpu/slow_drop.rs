//! expect: killed TotalBudget
//! Returns, but a drop never ends.
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
    let _slow = Slow;
    Ok(())
}
