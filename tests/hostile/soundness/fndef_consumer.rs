//! expect: refused projection
//! rust-lang/rust 84366: a function given as a value believes the bounds that its argument implies.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::marker::PhantomData;
struct S<'x, T>(T, PhantomData<&'x T>);
fn give<'a>(s: S<'static, &'a str>) -> &'static str { s.0 }
fn f<'x, I: Iterator, R>(_: Option<&'x I>, v: I::Item, k: impl FnOnce(S<'x, I::Item>) -> R) -> R { k(S(v, PhantomData)) }
fn none<T>(_: &T) -> Option<&'static T> { loop {} }
fn forget<'a>(v: &'a str) -> &'static str { let it = core::iter::repeat_with(|| -> &'a str { "" }); let w: &'static _ = Box::leak(Box::new(it)); f(Some(w), v, give) }
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; b.to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
