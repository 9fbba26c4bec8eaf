//! expect: refused self-lifetime
//! rust-lang/rust 84366: the receiver witnesses for another value, which goes into an argument.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(b"x") }
trait Ext: Copy { fn ext<'l>(&'l self, x: Self, to: &mut Vec<&'l str>); }
impl Ext for &str { fn ext<'l>(&'l self, x: Self, to: &mut Vec<&'l str>) { to.push(x) } }
