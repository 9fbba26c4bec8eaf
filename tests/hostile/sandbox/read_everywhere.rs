//! expect: refused unsafe
//! sandboxed: ok or killed MemoryFault or killed StackOverflow
//! variants: pages
//! Reads from an address on, whatever is there, and keeps it where a fault does not take it.
#![no_std]
#![allow(warnings)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    let first = args.try_into().map_or(0, u32::from_le_bytes);
    let mut found = Vec::new();
    for step in 0..512u32 {
        let at = core::hint::black_box(first.wrapping_add(step * 8));
        let word = unsafe { core::ptr::read_volatile(at as *const u64) };
        if word != 0 {
            found.extend_from_slice(&word.to_le_bytes());
        }
    }
    if !found.is_empty() {
        db.put(table, &first.to_le_bytes(), &found).await?;
    }
    db.reply(&found)
}
