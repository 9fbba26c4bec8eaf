//! expect: killed TotalBudget
//! Polls by hand two futures that wake each other.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let mut one = Box::pin(async {
        loop {
            yield_now().await;
        }
    });
    let mut two = Box::pin(async {
        loop {
            yield_now().await;
        }
    });
    core::future::poll_fn(|context| {
        for _ in 0..1000 {
            let _: core::task::Poll<()> = core::future::Future::poll(one.as_mut(), context);
            let _: core::task::Poll<()> = core::future::Future::poll(two.as_mut(), context);
        }
        context.waker().wake_by_ref();
        core::task::Poll::<()>::Pending
    })
    .await;
    Ok(())
}
