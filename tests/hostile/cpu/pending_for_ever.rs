//! expect: killed TotalBudget
//! A future that is never ready.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    core::future::pending::<()>().await;
    Ok(())
}
