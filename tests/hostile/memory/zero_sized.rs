//! expect: ok
//! More of nothing than can be counted.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let mut v: Vec<()> = Vec::new();
    v.resize(usize::MAX, ());
    let b: Box<[[u64; 0]]> = vec![[]; 1 << 40].into_boxed_slice();
    db.reply(&(v.len() ^ b.len()).to_le_bytes())
}
