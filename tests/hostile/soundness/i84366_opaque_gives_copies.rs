//! expect: refused projection
//! rust-lang/rust 84366: a closure behind impl Trait gives out copies of the item that it keeps.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use alloc::rc::Rc; use core::cell::Cell;
type Slot<'a> = Rc<Cell<Option<&'a str>>>;
fn fill(n: u8) -> String { let mut s = String::new(); for _ in 0..40 { s.push(char::from(n)); } s }
trait Text { fn text(&self) -> String; }
impl Text for Rc<Cell<Option<&str>>> { fn text(&self) -> String { format!("{:?}", self.get()) } }
fn keep<I: Iterator>(mut i: I) -> impl FnMut() -> (Option<I::Item>, String) where I::Item: Text + Clone {
    let b = i.next();
    move || (b.clone(), b.as_ref().map(|b| b.text()).unwrap_or_default())
}
fn attack() -> String {
    let mut show = keep(core::iter::from_fn(|| -> Option<Slot<'_>> { Some(Rc::new(Cell::new(None))) }));
    { let s = fill(65); if let (Some(a), _) = show() { a.set(Some(&s)); } }
    let t = fill(66);
    let r = show().1; drop(t); r
}
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
