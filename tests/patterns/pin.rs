//! `pin!`: futures that are polled by hand, one that is ready and one that waits for a record.
//@ call: apple -> ready 5, waited for 3
//@ call: fig -> ready 3, waited for 3
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

use core::future::{Future, poll_fn, ready};
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use sandstorm_api::prelude::*;

fn now<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    db.put(table, args, b"abc").await?;
    let length = now(ready(args.len())).ok_or(Error::invalid("what is ready waits"))?;
    let mut get = pin!(db.get(table, args));
    let found = poll_fn(|context| get.as_mut().poll(context)).await?;
    let bytes = found.map_or(0, |record| record.value().len());
    db.reply(format!("ready {length}, waited for {bytes}").as_bytes())
}
