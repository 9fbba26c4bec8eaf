//! expect: ok
//! Starts reads and drops them half way.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    for _ in 0..1000 {
        let mut read = Box::pin(db.get(table, b"k"));
        let mut context = core::task::Context::from_waker(core::task::Waker::noop());
        core::hint::black_box(core::future::Future::poll(read.as_mut(), &mut context).is_ready());
    }
    db.reply(b"dropped")
}
