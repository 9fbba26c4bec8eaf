//! expect: compile-error
//! rust-lang/rust 25860: the function becomes an object.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn witness<'a, 'b>(_: Two<'a, 'b>, v: &'b str) -> &'a str { v }
type Two<'a, 'b> = &'a &'b ();
fn attack() -> &'static str { let s = String::from("gone");
 let d: &dyn Fn(&'static &'static (), &str) -> &'static str = &witness; d(&&(), s.as_str()) }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
