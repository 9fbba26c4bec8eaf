//! expect: refused unsafe
//! sandboxed: ok or killed MemoryFault or killed OutOfMemory or killed TotalBudget
//! variants: 8
//! Reads memory that it has allocated and not written.
#![no_std]
#![allow(warnings)]

use sandstorm_api::prelude::*;

/// The number of this call.
fn variant(args: &[u8]) -> u32 {
    args.try_into().map_or(0, u32::from_le_bytes)
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let number = variant(args);
    let table = db.table("t")?;
    let len = [100usize, 4_000, 60_000, 200_000, 1_000_000, 3_000_000, 5, 500_000][number as usize % 8];
    let mut block = Vec::<u8>::with_capacity(len);
    unsafe { block.set_len(len) };
    let found: Vec<u8> = block.iter().copied().filter(|byte| *byte != 0).take(60_000).collect();
    db.put(table, &[b'u', number as u8], &found).await?;
    db.reply(&found)?;
    block.fill(0x77);
    core::hint::black_box(&block);
    Ok(())
}
