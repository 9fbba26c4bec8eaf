//! expect: refused erased
//! Leaked memory, by the function of a type in brackets.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn attack() -> String { let v: &'static mut [u8] = <Vec<u8>>::leak(vec![1]); String::new() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
