//! expect: refused
//! alloc under another name.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use crate::alloc as a;
fn attack() -> String { let l = a::alloc::Layout::new::<u8>(); String::new() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
