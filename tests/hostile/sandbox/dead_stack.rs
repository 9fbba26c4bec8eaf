//! expect: refused unsafe
//! sandboxed: ok or killed MemoryFault or killed StackOverflow
//! variants: 16
//! Reads the stack in its memory below and above its own part.
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
    let local = core::hint::black_box(&number) as *const u32 as u32;
    let from = [local, 0x10_0000, 0xf_0000, 0x8_0000][number as usize % 4];
    let mut found = Vec::new();
    for n in 0..16_384u32 {
        let at = core::hint::black_box(if number < 8 { from.wrapping_sub(n * 8) } else { from.wrapping_add(n * 8) } & !7);
        let word = unsafe { core::ptr::read_volatile(at as *const u64) };
        if word != 0 {
            found.extend_from_slice(&word.to_le_bytes());
        }
        if n % 1024 == 1023 {
            found.truncate(60_000);
            db.put(table, &[b's', number as u8], &found).await?;
        }
    }
    db.reply(&found)
}
