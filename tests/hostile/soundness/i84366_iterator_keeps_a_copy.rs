//! expect: refused projection
//! rust-lang/rust 84366: an iterator behind impl Trait keeps a copy of what it gives.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use alloc::rc::Rc; use core::cell::Cell;
type Slot<'a> = Rc<Cell<Option<&'a str>>>;
fn fill(n: u8) -> String { let mut s = String::new(); for _ in 0..40 { s.push(char::from(n)); } s }
fn keep<I: Iterator>(mut i: I) -> (Option<I::Item>, impl Iterator<Item = I::Item>) where I::Item: Clone {
    let a = i.next(); let b = a.clone();
    (a, b.into_iter().chain(i))
}
fn attack() -> String {
    let (a, mut show) = keep(core::iter::from_fn(|| -> Option<Slot<'_>> { Some(Rc::new(Cell::new(None))) }));
    { let s = fill(65); if let Some(a) = a { a.set(Some(&s)); } }
    let t = fill(66);
    let r = show.next().map(|x| format!("{:?}", x.get())).unwrap_or_default(); drop(t); r
}
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
