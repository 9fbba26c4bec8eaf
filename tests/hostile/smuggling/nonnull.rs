//! expect: refused address
//! The address of a cell.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn attack() -> String { let c = core::cell::Cell::new(1u8); let p = c.as_ptr(); (p as usize).to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
