//! expect: refused index
//! rust-lang/rust 160525 without a statement: the inner index is a `match` that takes the row.
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

fn shown(rows: [[Box<[u64; 8]>; 1]; 1]) -> String {
    let kept = &rows[0][match rows { [row] => row.len() - 1 }];
    format!("{kept:?}")
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    
    db.reply(&(shown([[Box::new([7; 8])]]).len() as u64).to_le_bytes())
}
