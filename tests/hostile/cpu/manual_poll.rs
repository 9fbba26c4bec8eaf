//! expect: killed TotalBudget
//! Polls a future of its own without ever yielding itself.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut never = Box::pin(core::future::pending::<()>());
    let mut context = core::task::Context::from_waker(core::task::Waker::noop());
    loop {
        core::hint::black_box(core::future::Future::poll(never.as_mut(), &mut context).is_ready());
    }
}
