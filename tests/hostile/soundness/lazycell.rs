//! expect: refused fn-pointer
//! A function pointer by a parameter's default: LazyCell in a constant.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn witness<'a, 'b>(_: Two<'a, 'b>, v: &'b str) -> &'a str { v }
type Two<'a, 'b> = &'a &'b ();
fn attack() -> &'static str { let s = String::from("gone");
 const C: core::cell::LazyCell<u8> = core::cell::LazyCell::new(f); fn f() -> u8 { 1 } ""  }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
