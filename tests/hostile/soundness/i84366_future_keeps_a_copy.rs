//! expect: refused projection
//! rust-lang/rust 84366: a future behind impl Trait keeps a copy of the item that its function gives out.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use alloc::rc::Rc; use core::cell::Cell;
type Slot<'a> = Rc<Cell<Option<&'a str>>>;
fn fill(n: u8) -> String { let mut s = String::new(); for _ in 0..40 { s.push(char::from(n)); } s }
trait Text { fn text(&self) -> String; }
impl Text for Rc<Cell<Option<&str>>> { fn text(&self) -> String { format!("{:?}", self.get()) } }
fn keep<I: Iterator>(mut i: I) -> (Option<I::Item>, impl Future<Output = String>) where I::Item: Text + Clone {
    let a = i.next(); let b = a.clone();
    (a, async move { yield_now().await; b.as_ref().map(|b| b.text()).unwrap_or_default() })
}
fn forget<'a>(v: &'a str) -> core::pin::Pin<Box<dyn Future<Output = String>>> {
    let (a, show) = keep(core::iter::from_fn(|| -> Option<Slot<'a>> { Some(Rc::new(Cell::new(None))) }));
    if let Some(a) = a { a.set(Some(v)); }
    Box::pin(show)
}
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let b = { let s = fill(65); forget(&s) }; let t = fill(66);
    let r = b.await; drop(t); db.reply(r.as_bytes())
}
