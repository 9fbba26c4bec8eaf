//! expect: refused address
//! The addresses in the debug text of a waker, through a generic function.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn show<T: core::fmt::Debug>(t: T) -> String { format!("{t:?}") }
fn attack() -> String { show(core::task::Waker::noop()) }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
