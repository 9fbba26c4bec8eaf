//! expect: refused address
//! An address as text, with a width and a named argument.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn attack() -> String { let x = 1u8; let y = &x; format!("{y:#018p}") }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
