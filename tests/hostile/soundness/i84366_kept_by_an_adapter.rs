//! expect: refused projection
//! rust-lang/rust 84366: what is kept is made of a parameter whose bound says something else's item.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use alloc::rc::Rc; use core::cell::Cell;
type Slot<'a> = Rc<Cell<Option<&'a str>>>;
trait Text { fn text(&self) -> String; }
impl Text for Rc<Cell<Option<&str>>> { fn text(&self) -> String { format!("{:?}", self.get()) } }
fn attack() -> String { let mut b = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); forget(&s) }; let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB"); let r = b(); drop(t); r }
use core::iter::Peekable; use core::ops::Not;
struct V<F>(F);
impl<F> Iterator for V<F> { type Item = u8; fn next(&mut self) -> Option<u8> { None } }
impl<T, F: Fn() -> T> Not for V<F> { type Output = T; fn not(self) -> T { (self.0)() } }
struct W<P>(Option<P>);
impl<P: Not> Iterator for W<P> { type Item = P::Output; fn next(&mut self) -> Option<P::Output> { self.0.take().map(|p| !p) } }
struct K<P: Iterator<Item = u8> + Not>(Peekable<W<P>>);
fn mk<P: Iterator<Item = u8> + Not>(p: P) -> K<P> { K(W(Some(p)).peekable()) }
fn first<P: Iterator<Item = u8> + Not>(k: &mut K<P>) -> Option<P::Output> where P::Output: Clone { k.0.peek().cloned() }
fn show<P: Iterator<Item = u8> + Not>(k: &mut K<P>) -> String where P::Output: Text { k.0.peek().map(|x| x.text()).unwrap_or_default() }
fn forget<'a>(v: &'a str) -> Box<dyn FnMut() -> String> {
    let mut k = mk(V(|| -> Slot<'a> { Rc::new(Cell::new(None)) }));
    first(&mut k).unwrap().set(Some(v));
    Box::new(move || show(&mut k))
}
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
