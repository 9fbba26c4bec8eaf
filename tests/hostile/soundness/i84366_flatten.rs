//! expect: refused erased
//! rust-lang/rust 84366: Flatten keeps the rest of what a closure gave, and a boxed closure hides it.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use alloc::rc::Rc; use core::cell::Cell;
type Slot<'a> = Rc<Cell<Option<&'a str>>>;
fn fill(n: u8) -> String { let mut s = String::new(); for _ in 0..40 { s.push(char::from(n)); } s }
fn forget<'a>(v: &'a str) -> Box<dyn FnMut() -> String> {
    let mut it = core::iter::once(()).map(|()| -> [Slot<'a>; 2] { let r = Rc::new(Cell::new(None)); [r.clone(), r] }).flatten();
    let a = it.next().unwrap(); a.set(Some(v));
    Box::new(move || it.next().map(|x| format!("{:?}", x.get())).unwrap_or_default())
}
fn attack() -> String { let mut b = { let s = fill(65); forget(&s) }; let t = fill(66); let r = b(); drop(t); r }
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
