//! expect: refused address
//! An address through a closure and a generic function.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn show<R: core::fmt::Debug>(f: impl Fn(&[u8]) -> R) -> String { format!("{:?}", f(b"x")) }
fn attack() -> String { show(|s| s.as_ptr()) }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
