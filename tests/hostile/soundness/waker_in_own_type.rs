//! expect: refused address
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;
use core::task::{Context, Poll, Waker};
trait Show { fn show(&self) -> String; }
struct H<T>(T);
impl<T: core::fmt::Debug> Show for H<T> { fn show(&self) -> String { format!("{:?}", self.0) } }
fn of(h: H<Waker>) -> String { h.show() }
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let s = core::future::poll_fn(|cx: &mut Context<'_>| Poll::Ready(of(H(cx.waker().clone())))).await;
    db.reply(s.as_bytes()) }
