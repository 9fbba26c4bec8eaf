//! expect: refused unsafe
//! sandboxed: ok or killed MemoryFault or killed StackOverflow or killed Panic or killed OutOfMemory or killed TotalBudget or failed
//! variants: 30
//! Makes slices, strings and records of any address and length, and uses them as safe code would.
#![no_std]
#![allow(warnings)]

use sandstorm_api::prelude::*;

/// The number of this call.
fn variant(args: &[u8]) -> u32 {
    args.try_into().map_or(0, u32::from_le_bytes)
}

/// Numbers that an attacker would try, and others.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let number = (self.0 >> 32) as u32;
        const EDGES: [u32; 20] = [
            0, 1, 2, 7, 8, 15, 4095, 4096, 0xffff, 0x10000, 0xf_ffff, 0x10_0000, 0x7fff_ffff, 0x8000_0000, 0x8000_ffff,
            0xbfff_ffff, 0xc000_0000, 0xffff_0000, 0xffff_fff0, 0xffff_ffff,
        ];
        match number % 4 {
            0 => EDGES[(number / 4) as usize % EDGES.len()],
            1 => number / 4 % 300,
            2 => 0x10_0000 + number / 4 % 0x4_0000,
            _ => number,
        }
    }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let mut numbers = Numbers(u64::from(variant(args)) + 99);
    let table = db.table("t")?;
    for _ in 0..40 {
        let (at, len) = (numbers.next().max(1), numbers.next() & 0x7fff_ffff);
        let bytes: &[u8] = unsafe { core::slice::from_raw_parts(at as *const u8, len as usize) };
        let _ = db.put(table, b"forged", bytes).await;
        let _ = db.put(table, bytes, b"forged").await;
        let _ = db.get(table, bytes).await;
        let _ = db.reply(bytes);
        let text: &str = unsafe { core::str::from_utf8_unchecked(bytes) };
        let _ = db.table(text);
    }
    db.reply(b"done")
}
