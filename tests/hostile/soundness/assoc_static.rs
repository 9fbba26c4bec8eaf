//! expect: refused outlives
//! A bound by a lifetime on an associated type.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn f(x: impl Iterator<Item: 'static + Clone>) -> usize { x.count() }
fn attack() -> String { String::new() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
