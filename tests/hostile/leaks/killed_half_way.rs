//! expect: killed TotalBudget
//! Is ended between the steps of a read.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    let mut half = Box::pin(db.get(table, b"k"));
    let mut context = core::task::Context::from_waker(core::task::Waker::noop());
    core::hint::black_box(core::future::Future::poll(half.as_mut(), &mut context).is_ready());
    loop {
        yield_now().await;
    }
}
