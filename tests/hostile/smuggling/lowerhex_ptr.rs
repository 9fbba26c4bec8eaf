//! expect: refused address
//! The addresses of a slice's ends.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn attack() -> String { let v = vec![1u8, 2]; let r = v.as_slice().as_ptr_range(); format!("{:?}", r) }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
