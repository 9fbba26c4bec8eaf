//! expect: refused projection
//! rust-lang/rust 84366: impl Trait hides a struct, in whose type no closure shows.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use alloc::rc::Rc;
use core::cell::Cell;
use sandstorm_api::prelude::*;

type Slot<'a> = Rc<Cell<Option<&'a str>>>;
trait Text { fn text(&self) -> String; }
impl Text for Rc<Cell<Option<&str>>> { fn text(&self) -> String { format!("{:?}", self.get()) } }
struct Hold<T>(T);
impl<T: Text> Text for Hold<T> { fn text(&self) -> String { self.0.text() } }
fn keep<I: Iterator>(mut i: I) -> (Option<I::Item>, Option<impl Text>) where I::Item: Text + Clone {
    let a = i.next();
    (a.clone(), a.map(Hold))
}
fn forget<'a>(v: &'a str) -> Box<dyn FnMut() -> String> {
    let (a, show) = keep(core::iter::from_fn(|| -> Option<Slot<'a>> { Some(Rc::new(Cell::new(None))) }));
    if let Some(a) = a { a.set(Some(v)); }
    Box::new(move || show.as_ref().map(|show| show.text()).unwrap_or_default())
}
fn attack() -> String { let mut b = { let s = String::from("gone gone gone"); forget(&s) }; b() }
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
