//! expect: refused path
//! What is closed of alloc, by way of the module above.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

mod m { pub fn f() -> usize { super::alloc::alloc::Layout::new::<u64>().size() } }
fn attack() -> String { m::f().to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
