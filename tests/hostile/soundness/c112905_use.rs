//! expect: ok or refused
//! rust-lang/rust 112905: a closure with two lifetimes behind impl Trait; harmless by itself.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn forget<'a, 'b>() -> impl Fn(&'a str) -> &'b str + use<'a, 'b> { |x| "" }
fn attack() -> &'static str { "x" }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
