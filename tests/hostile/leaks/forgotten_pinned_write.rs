//! expect: ok
//! Writes that are begun and forgotten in boxes.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let table = db.table("t")?;
    for n in 0..500u32 {
        let key = n.to_le_bytes();
        let mut put = Box::pin(async { db.put(table, &key, b"v").await });
        let mut context = core::task::Context::from_waker(core::task::Waker::noop());
        let _ = core::future::Future::poll(put.as_mut(), &mut context);
        core::mem::forget(put);
    }
    db.reply(b"x")
}
