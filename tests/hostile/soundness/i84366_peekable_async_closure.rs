//! expect: refused impl-parameter
//! rust-lang/rust 84366: and an async closure.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::future::Future; use core::task::{Context, Poll, Waker}; use core::pin::Pin;
struct It<F>(F);
impl<T, F: AsyncFn() -> T> Iterator for It<F> { type Item = T; fn next(&mut self) -> Option<T> {
    let mut f = Box::pin((self.0)()); match f.as_mut().poll(&mut Context::from_waker(Waker::noop())) { Poll::Ready(t) => Some(t), Poll::Pending => None } } }
fn forget<'a>(v: &'a str) -> Box<dyn FnMut() -> String> {
    let mut it = It(async || { let r: &'a str = ""; r }).peekable();
    *it.peek_mut().unwrap() = v;
    Box::new(move || { it.peek().map(|x| String::from(*x)).unwrap_or_default() })
}
fn attack() -> String { let mut b = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); forget(&s) }; let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB"); let r = b(); drop(t); r }
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
