//! expect: refused nested-lifetime
//! rust-lang/rust 84366: a lifetime around the item, in an associated type.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::marker::PhantomData;
struct S<'x, T>(T, PhantomData<&'x T>);
fn give<'a>(s: S<'static, &'a str>) -> &'static str { s.0 }
struct W<'x, T, I: Iterator<Item = T>>(Option<T>, PhantomData<&'x I>);
impl<'x, T, I: Iterator<Item = T>> Iterator for W<'x, T, I> { type Item = S<'x, I::Item>; fn next(&mut self) -> Option<S<'x, I::Item>> { self.0.take().map(|v| S(v, PhantomData)) } }
fn attack() -> String { String::new() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
