//! expect: compile-error
//! A future that was polled, moved.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let mut f = async { yield_now().await };
    let mut g = core::pin::Pin::new(&mut f);
    let _ = g.as_mut();
    Ok(())
}
