//! expect: refused erased
//! Leaked memory, by the function as a value.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn attack() -> String { let l = Vec::leak; let v: &'static mut [u8] = l(vec![1]); String::new() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
