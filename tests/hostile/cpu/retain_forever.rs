//! expect: killed TotalBudget
//! A drop that never ends, inside of a vector that drops what it does not keep.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Slow;
impl Drop for Slow {
    fn drop(&mut self) {
        let mut x = 1u64;
        loop {
            x = core::hint::black_box(x.wrapping_mul(3));
        }
    }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let mut v = vec![Slow, Slow];
    v.retain(|_| false);
    db.reply(&[v.len() as u8])
}
