//! expect: refused unsafe
//! sandboxed: ok or killed MemoryFault or killed StackOverflow or killed Panic or killed OutOfMemory or killed IllegalInstruction or killed TotalBudget or failed
//! variants: pages
//! Writes from an address on, whatever is there, and goes on with what is left.
#![no_std]
#![allow(warnings)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let first = args.try_into().map_or(0, u32::from_le_bytes);
    for step in 0..512u32 {
        let at = core::hint::black_box(first.wrapping_add(step * 8));
        unsafe { core::ptr::write_volatile(at as *mut u64, 0x4141_4141_4141_4141) };
    }
    let table = db.table("t")?;
    let value = db.get(table, b"k").await?;
    let copy: Vec<u8> = value.map(|record| record.value().to_vec()).unwrap_or_default();
    db.reply(&copy)
}
