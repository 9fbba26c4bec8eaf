//! expect: refused projection
//! rust-lang/rust 84366: FlatMap keeps what an IntoIterator of our own becomes, and names it alone.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use alloc::rc::Rc; use core::cell::Cell;
type Slot<'a> = Rc<Cell<Option<&'a str>>>;
fn fill(n: u8) -> String { let mut s = String::new(); for _ in 0..40 { s.push(char::from(n)); } s }
struct My<'a>(Slot<'a>);
impl<'a> Iterator for My<'a> { type Item = Slot<'a>; fn next(&mut self) -> Option<Slot<'a>> { Some(self.0.clone()) } }
struct W<F>(F);
impl<T: Iterator, F: Fn() -> T> IntoIterator for W<F> { type Item = T::Item; type IntoIter = T; fn into_iter(self) -> T { (self.0)() } }
fn forget<'a>(v: &'a str) -> Box<dyn FnMut() -> String> {
    let mut it = core::iter::once(()).flat_map(|()| W(|| -> My<'a> { My(Rc::new(Cell::new(None))) }));
    let a = it.next().unwrap(); a.set(Some(v));
    Box::new(move || it.next().map(|x| format!("{:?}", x.get())).unwrap_or_default())
}
fn attack() -> String { let mut b = { let s = fill(65); forget(&s) }; let t = fill(66); let r = b(); drop(t); r }
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
