//! expect: ok or killed StackOverflow or killed TotalBudget
//! sandboxed: ok or killed StackOverflow or killed TotalBudget or killed MemoryFault
//! variants: 5
//! Has arrays on its stack that are longer than that, and more values at once than there are registers.
#![no_std]
#![allow(warnings)]

use sandstorm_api::prelude::*;

/// The number of this call.
fn variant(args: &[u8]) -> u32 {
    args.try_into().map_or(0, u32::from_le_bytes)
}

#[inline(never)]
fn frame<const N: usize>(x: u8) -> u64 {
    let mut block = [x; N];
    core::hint::black_box(&mut block);
    u64::from(block[N / 2])
}

#[inline(never)]
fn values(seed: u64) -> u64 {
    <<<900*let v{n} = core::hint::black_box(seed ^ {n});
    >>>let mut sum = seed;
    <<<900*sum = sum.wrapping_mul(31).wrapping_add(v{n});
    >>>sum
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let answer = match variant(args) {
        0 => frame::<500_000>(1),
        1 => frame::<2_000_000>(1),
        2 => frame::<100_000_000>(1),
        3 => frame::<1_000_000_000>(1),
        _ => values(7),
    };
    db.reply(&answer.to_le_bytes())
}
