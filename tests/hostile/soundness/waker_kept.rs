//! expect: ok or refused or compile-error
//! A waker of one poll, used in another.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Keep(Option<core::task::Waker>);
impl core::future::Future for Keep {
    type Output = ();
    fn poll(mut self: core::pin::Pin<&mut Self>, context: &mut core::task::Context<'_>) -> core::task::Poll<()> {
        match self.0.take() {
            Some(waker) => {
                waker.wake();
                core::task::Poll::Ready(())
            }
            None => {
                self.0 = Some(context.waker().clone());
                context.waker().wake_by_ref();
                core::task::Poll::Pending
            }
        }
    }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    for _ in 0..100 {
        Keep(None).await;
    }
    db.reply(b"x")
}
