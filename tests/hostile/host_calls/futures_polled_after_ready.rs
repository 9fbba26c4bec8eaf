//! expect: ok
//! Polls a read again after it has answered.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    let mut read = Box::pin(db.get(table, b"k"));
    let mut context = core::task::Context::from_waker(core::task::Waker::noop());
    for _ in 0..100 {
        core::hint::black_box(core::future::Future::poll(read.as_mut(), &mut context).is_ready());
    }
    db.reply(b"polled")
}
