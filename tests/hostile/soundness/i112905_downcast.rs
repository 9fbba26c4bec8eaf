//! expect: refused erased
//! rust-lang/rust 112905: an error gets its type back with other lifetimes.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt;
struct E<F>(F);
impl<F> fmt::Debug for E<F> { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { Ok(()) } }
impl<F> fmt::Display for E<F> { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { Ok(()) } }
impl<F> core::error::Error for E<F> {}
fn go<'a, 'b>(v: Option<&'a str>, back: Option<Box<dyn core::error::Error>>, proof: Option<core::marker::PhantomData<&'a &'b ()>>, out: &mut Option<&'b str>) -> Option<Box<dyn core::error::Error>> {
    let c = core::iter::repeat_with(|| -> core::cell::Cell<Option<&'a str>> { core::cell::Cell::new(None) });
    let mut d = |x: &'a str| -> Option<&'b str> { None };
    match back { Some(b) => { let mut w = E(d); if let Ok(e) = b.downcast() { let e: Box<E<_>> = e; if false { w = *e; } else { if let Some(v) = v { *out = (e.0)(v); } } } None } None => Some(Box::new(E(d))) }
}
fn attack() -> String { let mut o = None; let b = go(None, None, None, &mut o); { let s = String::from("gone"); go(Some(&s), b, None, &mut o); } String::from(o.unwrap_or("none")) }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
