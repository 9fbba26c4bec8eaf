//! expect: refused address
//! The addresses inside of a waker.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn attack() -> String { let w = core::task::Waker::noop(); format!("{:?}", w.data()) }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
