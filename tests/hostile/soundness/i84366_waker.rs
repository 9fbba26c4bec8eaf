//! expect: refused erased
//! rust-lang/rust 84366: a waker keeps the item.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::Display; use alloc::sync::Arc; use alloc::task::Wake; use core::task::Waker;
struct H<T>(T);
impl<T: Display + Send + Sync> Wake for H<T> { fn wake(self: Arc<Self>) { panic!("{}", self.0) } }
fn boxed<I: Iterator>(_: &'static I, v: I::Item) -> Waker where I::Item: Display + Send + Sync { Waker::from(Arc::new(H(v))) }
fn forget<'a>(v: &'a str) -> Waker {
    let it = core::iter::repeat_with(|| -> &'a str { loop {} });
    boxed(Box::leak(Box::new(it)), v)
}
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; b.wake(); String::new() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
