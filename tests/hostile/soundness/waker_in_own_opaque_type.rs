//! expect: refused address
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;
use core::task::{Context, Poll, Waker};
trait Keep { fn text(self) -> String; }
struct H<T>(T);
impl<T: core::fmt::Debug> H<T> { fn text(&self) -> String { format!("{:?}", self.0) } }
fn h(w: Waker) -> H<impl core::fmt::Debug> { H(w) }
fn of(cx: &Context<'_>) -> String { h(cx.waker().clone()).text() }
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let s = core::future::poll_fn(|cx: &mut Context<'_>| Poll::Ready(of(cx))).await;
    db.reply(s.as_bytes()) }
