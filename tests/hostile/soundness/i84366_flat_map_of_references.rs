//! expect: refused projection
//! rust-lang/rust 84366: the same, implemented for a reference.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
// FlatMap whose U is an Option of an own IntoIterator behind a reference
use alloc::rc::Rc; use core::cell::Cell;
type Slot<'a> = Rc<Cell<Option<&'a str>>>;
struct W<F>(F);
impl<T: Iterator, F: Fn() -> T> IntoIterator for &W<F> { type Item = T::Item; type IntoIter = T; fn into_iter(self) -> T { (self.0)() } }
fn forget<'a>(v: &'a str) -> Box<dyn FnMut() -> String> {
    let mut it = core::iter::repeat_with(|| &W(|| -> core::iter::Repeat<Slot<'a>> { core::iter::repeat(Rc::new(Cell::new(None))) })).flat_map(|x| x);
    let a = it.next().unwrap(); a.set(Some(v));
    Box::new(move || it.next().map(|x| format!("{:?}", x.get())).unwrap_or_default())
}
fn attack() -> String { let mut b = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); forget(&s) }; let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB"); let r = b(); drop(t); r }
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
