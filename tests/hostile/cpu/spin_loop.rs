//! expect: killed TotalBudget
//! Spins with the processor's own hint.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    loop {
        core::hint::spin_loop();
    }
}
