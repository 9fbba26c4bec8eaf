//! expect: ok or killed StackOverflow or killed OutOfMemory or refused
//! A waker of its own by the safe way, given to the calls of the server.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::sync::Arc;
use alloc::task::Wake;
use sandstorm_api::prelude::*;

struct Mine(core::num::Wrapping<u32>);
impl Wake for Mine {
    fn wake(self: Arc<Self>) {
        assert_eq!(self.0.0, 0);
    }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let table = db.table("t")?;
    let mine = Arc::new(Mine(Default::default()));
    let waker = core::task::Waker::from(Arc::clone(&mine));
    let mut context = core::task::Context::from_waker(&waker);
    let mut get = Box::pin(async { db.get(table, b"k").await.map(|record| record.is_some()) });
    for _ in 0..10 {
        if core::future::Future::poll(get.as_mut(), &mut context).is_ready() {
            break;
        }
    }
    core::mem::forget(waker);
    db.reply(&[Arc::strong_count(&mine) as u8])
}
