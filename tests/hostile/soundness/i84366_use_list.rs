//! expect: refused outlives
//! rust-lang/rust 84366: a list of captures leaves out the lifetime that goes out beside the closure.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use alloc::rc::Rc; use core::cell::Cell;
type Slot<'a> = Rc<Cell<Option<&'a str>>>;
trait Text { fn text(&self) -> String; }
impl Text for Rc<Cell<Option<&str>>> { fn text(&self) -> String { format!("{:?}", self.get()) } }
fn attack() -> String { let mut b = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); forget(&s) }; let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB"); let r = b(); drop(t); r }
fn keep<'a, I: Iterator<Item: Text + Clone + Into<Slot<'a>>>>(mut i: I, out: &Cell<Option<Slot<'a>>>) -> impl FnMut() -> String + use<I> {
    let item = i.next().unwrap();
    out.set(Some(item.clone().into()));
    move || item.text()
}
fn forget<'a>(v: &'a str) -> Box<dyn FnMut() -> String> {
    let out = Cell::new(None);
    let f = keep(core::iter::repeat_with(|| -> Slot<'a> { Rc::new(Cell::new(None)) }), &out);
    out.take().unwrap().set(Some(v));
    Box::new(f)
}
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
