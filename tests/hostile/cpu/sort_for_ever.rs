//! expect: killed TotalBudget or killed Panic
//! Sorts with an order that is none.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut numbers: Vec<u32> = (0..10_000).collect();
    let mut state = 1u32;
    loop {
        numbers.sort_unstable_by(|_, _| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if state & 1 == 0 { core::cmp::Ordering::Less } else { core::cmp::Ordering::Greater }
        });
    }
}
