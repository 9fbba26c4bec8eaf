//! expect: refused address
//! A waker's text, in the panic of an unwrap.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::task::Waker; use core::fmt;
fn attack() -> String { let r: Result<u8, Waker> = Err(Waker::noop().clone()); r.unwrap(); String::new() }
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
