//! expect: killed TotalBudget
//! Yields for ever.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    loop {
        yield_now().await;
    }
}
