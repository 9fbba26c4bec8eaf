//! expect: refused address
//! A waker's text, by its own method.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::task::Waker; use core::fmt;
struct H(Waker);
impl fmt::Debug for H { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.0.fmt(f) } }
fn attack() -> String { format!("{:?}", H(Waker::noop().clone())) }
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
