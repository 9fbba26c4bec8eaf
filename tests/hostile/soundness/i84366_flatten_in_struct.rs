//! expect: refused projection
//! rust-lang/rust 84366: a struct hides the Flatten.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use alloc::rc::Rc; use core::cell::Cell;
type Slot<'a> = Rc<Cell<Option<&'a str>>>;
fn fill(n: u8) -> String { let mut s = String::new(); for _ in 0..40 { s.push(char::from(n)); } s }
trait Text { fn text(&self) -> String; }
impl Text for Rc<Cell<Option<&str>>> { fn text(&self) -> String { format!("{:?}", self.get()) } }
struct W<F>(core::iter::Flatten<F>) where F: Iterator, F::Item: IntoIterator;
fn forget<'a>(v: &'a str) -> Box<dyn FnMut() -> String> {
    let mut it = W(core::iter::once(()).map(|()| -> [Slot<'a>; 2] { let r = Rc::new(Cell::new(None)); [r.clone(), r] }).flatten());
    let a = it.0.next().unwrap(); a.set(Some(v));
    Box::new(move || it.0.next().map(|x| x.text()).unwrap_or_default())
}
fn attack() -> String { let mut b = { let s = fill(65); forget(&s) }; let t = fill(66); let r = b(); drop(t); r }
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
