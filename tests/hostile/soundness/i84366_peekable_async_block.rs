//! expect: refused erased
//! rust-lang/rust 84366: an async block, too, says nothing of what it gives.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
// an iterator of our own over an async block, whose item is set by hand
use core::future::Future; use core::task::{Context, Poll, Waker}; use core::pin::Pin;
struct It<F>(Option<Pin<Box<F>>>);
impl<T, F: Future<Output = T>> Iterator for It<F> { type Item = T; fn next(&mut self) -> Option<T> {
    let mut f = self.0.take()?; match f.as_mut().poll(&mut Context::from_waker(Waker::noop())) { Poll::Ready(t) => Some(t), Poll::Pending => None } } }
fn forget<'a>(v: &'a str) -> Box<dyn FnMut() -> String> {
    let mut it = It(Some(Box::pin(async { let r: &'a str = ""; r }))).peekable();
    *it.peek_mut().unwrap() = v;
    Box::new(move || { it.peek().map(|x| String::from(*x)).unwrap_or_default() })
}
fn attack() -> String { let mut b = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); forget(&s) }; let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB"); let r = b(); drop(t); r }
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
