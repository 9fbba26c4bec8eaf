//! expect: killed StackOverflow or killed OutOfMemory or ok
//! A chain of boxed futures, polled from the outside.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

fn nest(depth: u32) -> core::pin::Pin<Box<dyn core::future::Future<Output = u32>>> {
    Box::pin(async move {
        if depth == 0 {
            yield_now().await;
            return 0;
        }
        nest(depth - 1).await + 1
    })
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let n = nest(20_000).await;
    db.reply(&n.to_le_bytes())
}
