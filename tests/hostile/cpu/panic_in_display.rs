//! expect: killed
//! A panic inside the text of a panic, without end.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

struct D; impl core::fmt::Display for D { fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result { panic!("{}", D) } }
fn attack() -> String { D.to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
