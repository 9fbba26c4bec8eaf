//! expect: killed Panic or killed OutOfMemory
//! An iterator that says it has more than an address can count.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Liar;
impl Iterator for Liar {
    type Item = u64;
    fn next(&mut self) -> Option<u64> {
        Some(1)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let v: Vec<u64> = Liar.collect();
    db.reply(&v.len().to_le_bytes())
}
