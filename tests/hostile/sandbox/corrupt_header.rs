//! expect: refused unsafe
//! sandboxed: ok or killed MemoryFault or killed StackOverflow or killed Panic or killed OutOfMemory or killed IllegalInstruction or killed TotalBudget or failed
//! variants: 200
//! Writes over the invocation that the host and the allocator read, then uses both.
#![no_std]
#![allow(warnings)]

use sandstorm_api::prelude::*;

unsafe extern "C" {
    static __heap_base: u8;
}

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
    let number = variant(args);
    let table = db.table("t")?;
    let mut numbers = Numbers(u64::from(number));
    let header = (((&raw const __heap_base) as u32 + 15) & !15) as *mut u32;
    unsafe {
        if number < 36 {
            header.add(number as usize).write_volatile(u32::MAX);
        } else {
            for _ in 0..1 + number % 8 {
                header.add(numbers.next() as usize % 36).write_volatile(numbers.next());
            }
        }
    }
    for size in [1usize, 100, 5_000, 70_000, 300_000] {
        let mut block = Vec::<u8>::new();
        if block.try_reserve_exact(size).is_ok() {
            block.push(1);
            core::hint::black_box(&mut block);
        }
    }
    let found = db.get(table, b"k").await?;
    yield_now().await;
    db.reply(found.map_or(&[][..], |record| record.value()))
}
