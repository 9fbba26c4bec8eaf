//! expect: killed TotalBudget or killed Panic
//! Sorts stably with an order that is none: the library may notice.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut state = 1u32;
    loop {
        let mut numbers: Vec<u32> = (0..1_000).collect();
        numbers.sort_by(|_, _| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if state & 0x100 == 0 { core::cmp::Ordering::Less } else { core::cmp::Ordering::Greater }
        });
    }
}
