//! expect: killed TotalBudget
//! A search that is quadratic.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let hay = vec![b'a'; 1 << 20];
    let needle = vec![b'a'; 1 << 12];
    let mut hits = 0u64;
    loop {
        hits += hay.windows(needle.len() + 1).filter(|w| w.ends_with(&needle) && w[0] == b'b').count() as u64;
        core::hint::black_box(hits);
    }
}
