//! expect: refused path
//! The trait Wake, by way of the crate's own root.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use crate::alloc::task::Wake;
fn attack() -> String { String::new() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
