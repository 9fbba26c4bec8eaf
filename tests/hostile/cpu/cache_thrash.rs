//! expect: killed TotalBudget
//! Walks its whole arena so as to push out others' cache lines.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut block = vec![0u8; 2 << 20];
    loop {
        for at in (0..block.len()).step_by(64) {
            block[at] = block[at].wrapping_add(1);
        }
    }
}
