//! expect: compile-error
//! rust-lang/rust 25860: two functions in an array become pointers that the source does not show.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn witness<'a, 'b>(_: Two<'a, 'b>, v: &'b str) -> &'a str { v }
type Two<'a, 'b> = &'a &'b ();
fn attack() -> &'static str { let s = String::from("gone");
 let fs = [witness, other]; fs[0](&&(), s.as_str()) }
fn other<'a, 'b>(_: Two<'a, 'b>, v: &'b str) -> &'a str { v }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
