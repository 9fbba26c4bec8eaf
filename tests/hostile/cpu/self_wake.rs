//! expect: killed TotalBudget
//! Wakes itself each time that it is polled.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    core::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        core::task::Poll::<()>::Pending
    })
    .await;
    Ok(())
}
