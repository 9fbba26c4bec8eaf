//! expect: refused
//! A glob of alloc under the crate's own root.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

mod m { pub use super::alloc::*; }
fn attack() -> String { let l = m::alloc::Layout::new::<u8>(); String::new() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
