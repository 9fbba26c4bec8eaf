//! expect: refused address
//! A waker's text, by the trait's path.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::task::Waker; use core::fmt;
struct H(Waker);
impl fmt::Display for H { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { fmt::Debug::fmt(&self.0, f) } }
fn attack() -> String { H(Waker::noop().clone()).to_string() }
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
