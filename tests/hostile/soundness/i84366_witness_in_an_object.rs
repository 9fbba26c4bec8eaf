//! expect: refused self-lifetime
//! rust-lang/rust 84366: the witness is a reference to an object that takes `Self`.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(b"x") }
trait Ext: Sized { fn ext(self, _: Option<&dyn Fn(Self)>) -> &str; }
impl Ext for &str { fn ext(self, _: Option<&dyn Fn(Self)>) -> &str { self } }
fn launder<T: Ext, I: Iterator<Item = T>>(_: Option<&I>, x: T) -> usize { 1 }
