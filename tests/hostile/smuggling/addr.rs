//! expect: refused address
//! An address as a number: says where memory lies, and comparing is miscompiled (107975).
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn attack() -> String { let x = 5u8; let y = 6u8; let a = core::slice::from_ref(&x).as_ptr() as usize; a.to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
