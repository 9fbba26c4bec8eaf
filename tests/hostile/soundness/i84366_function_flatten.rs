//! expect: refused erased
//! rust-lang/rust 84366: the same in `Flatten`.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use alloc::rc::Rc; use core::cell::Cell;
fn make<'a>() -> Vec<Rc<Cell<&'a str>>> { let c = Rc::new(Cell::new("")); vec![c.clone(), c] }
fn extend<'a>(x: &'a str) -> Box<dyn FnMut() -> String> {
    let mut p = core::iter::repeat_with(make::<'a>).flatten();
    p.next().unwrap().set(x);
    Box::new(move || format!("{:?}", p.next()))
}
fn attack() -> String {
    let mut o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = o();
    drop(t);
    r
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
