//! expect: ok or refused
//! A pinned future that is replaced after it was polled.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let mut future: core::pin::Pin<Box<dyn core::future::Future<Output = ()>>> = Box::pin(async { yield_now().await });
    let mut context = core::task::Context::from_waker(core::task::Waker::noop());
    let _ = core::future::Future::poll(future.as_mut(), &mut context);
    future = Box::pin(async { yield_now().await });
    let _ = core::future::Future::poll(future.as_mut(), &mut context);
    drop(future);
    db.reply(b"x")
}
