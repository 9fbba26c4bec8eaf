//! expect: refused projection
//! rust-lang/rust 84366: the bound says the item of a kept iterator, by another's item.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::iter::Peekable; use core::fmt::Debug;
struct K<J: Iterator, I: Iterator<Item = J::Item>>(Peekable<I>, Option<J>);
fn mk<I: Iterator>(i: I) -> K<I, I> { K(i.peekable(), None) }
fn forget<'a>(v: &'a str) -> Box<dyn FnMut() -> String> {
    let mut k = mk(core::iter::repeat_with(|| -> &'a str { "" }));
    set(&mut k, v);
    Box::new(move || get(&mut k))
}
fn set<J: Iterator, I: Iterator<Item = J::Item>>(k: &mut K<J, I>, v: I::Item) { *k.0.peek_mut().unwrap() = v; }
fn get<J: Iterator, I: Iterator<Item = J::Item>>(k: &mut K<J, I>) -> String where I::Item: Debug { format!("{:?}", k.0.peek()) }
fn attack() -> String { let mut b = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); forget(&s) }; let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB"); let r = b(); drop(t); r }
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
