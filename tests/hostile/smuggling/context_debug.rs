//! expect: refused address
//! The addresses in the debug text of a context.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::future::poll_fn; use core::task::Poll;
fn attack() -> String { String::new() }
async fn leak2() -> String { poll_fn(|cx| Poll::Ready(format!("{cx:?}"))).await }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
