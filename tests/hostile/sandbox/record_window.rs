//! expect: refused unsafe
//! sandboxed: ok or killed MemoryFault or killed StackOverflow
//! variants: 40
//! Reads around the records that it was given, changes its copies, and reads again: the records are as they were.
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
    let first = db.get(table, b"k").await?.ok_or(Error::not_found("k"))?;
    let value = first.value().to_vec();
    let at = first.value().as_ptr() as u32;
    unsafe {
        for byte in 0..first.value().len() {
            ((at as usize + byte) as *mut u8).write_volatile(0xee);
        }
    }
    let second = db.get(table, b"k").await?.ok_or(Error::not_found("k"))?;
    assert_eq!(second.value(), value, "a copy was the record itself");
    let step = [1u32, 8, 64, 4096, 65_536][number as usize % 5];
    let mut found = Vec::new();
    for n in 0..1_024u32 {
        let by = step.wrapping_mul(n);
        let at = core::hint::black_box(if number < 20 { at.wrapping_add(by) } else { at.wrapping_sub(by) });
        found.push(unsafe { core::ptr::read_volatile(at as *const u8) });
        if n % 64 == 63 {
            db.put(table, &[b'w', number as u8], &found).await?;
        }
    }
    db.reply(&found)
}
