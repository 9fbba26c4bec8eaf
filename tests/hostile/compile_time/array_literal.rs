//! expect: limit or compile-error or ok
//! A constant of gigabytes behind a reference.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

const BIG: [[[[u64; 100]; 100]; 100]; 60] = [[[[7; 100]; 100]; 100]; 60];
fn f(at: usize) -> u64 { const OTHER: &[[[[[u64; 100]; 100]; 100]; 60]; 1] = &[BIG; 1]; OTHER[0][at % 60][at % 100][at % 100][at % 100] }
pub async fn run(db: Db<'_>, a: &[u8]) -> Result<(), Error> { db.reply(&f(a.len()).to_le_bytes()) }
