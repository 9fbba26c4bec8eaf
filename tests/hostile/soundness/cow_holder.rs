//! expect: refused impl-parameter
//! rust-lang/rust 84366: a Cow keeps what ToOwned only names.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::{self, Debug}; use core::borrow::Borrow; use alloc::borrow::{Cow, ToOwned};
struct D<F>(F);
#[derive(Debug)] struct M<'a>(&'a str);
impl<'a, F> Borrow<D<F>> for M<'a> { fn borrow(&self) -> &D<F> { loop {} } }
impl<'a, F: Fn() -> M<'a>> ToOwned for D<F> { type Owned = M<'a>; fn to_owned(&self) -> M<'a> { (self.0)() } }
impl<F> Debug for D<F> { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { Ok(()) } }
fn cow<'x, F>(d: &D<F>, m: <D<F> as ToOwned>::Owned) -> Cow<'x, D<F>> where D<F>: ToOwned { Cow::Owned(m) }
fn forget<'a>(v: &'a str) -> Box<dyn Debug> { let d = D(|| -> M<'a> { loop {} }); let mut c = Cow::Borrowed(&d); let mut c2: Cow<'static, _> = if false { loop {} } else { Cow::Owned(M(v)) }; if false { c = Cow::Owned(M(v)); let x = [c, c2]; loop {} } Box::new(c2) }
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; format!("{b:?}") }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
