//! expect: ok
//! A hundred reads under way at the same time, polled in turn.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    let mut reads: Vec<_> = (0..100).map(|_| Box::pin(db.get(table, b"k"))).collect();
    let mut done = 0u8;
    while !reads.is_empty() {
        let mut context = core::task::Context::from_waker(core::task::Waker::noop());
        reads.retain_mut(|read| {
            let ready = core::future::Future::poll(read.as_mut(), &mut context).is_ready();
            done += u8::from(ready);
            !ready
        });
        yield_now().await;
    }
    db.reply(&[done])
}
