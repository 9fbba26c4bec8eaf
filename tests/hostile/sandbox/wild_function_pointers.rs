//! expect: refused unsafe
//! sandboxed: ok or killed IllegalInstruction or killed MemoryFault or killed StackOverflow or killed TotalBudget or killed Panic or killed OutOfMemory or killed DivisionByZero or failed
//! variants: 160
//! Calls functions by wild pointers, and by pointers of another type.
#![no_std]
#![allow(warnings)]

use sandstorm_api::prelude::*;

/// The number of this call.
fn variant(args: &[u8]) -> u32 {
    args.try_into().map_or(0, u32::from_le_bytes)
}

fn nothing() {}
fn one(x: u32) -> u32 { x.wrapping_mul(3) }
fn two(x: u64, y: u64) -> u64 { x ^ y }
fn float(x: f64) -> f64 { x + 1.0 }

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let number = variant(args);
    // They are in the table of functions, from 1 on.
    core::hint::black_box((nothing as fn(), one as fn(u32) -> u32, two as fn(u64, u64) -> u64, float as fn(f64) -> f64));
    let index = core::hint::black_box(match number / 5 {
        at @ 0..28 => at,
        28 => 1 << 16,
        29 => 0x8000_0000,
        30 => u32::MAX,
        _ => u32::MAX - 1,
    } as usize);
    let answer = unsafe {
        match number % 5 {
            0 => { core::mem::transmute::<usize, fn()>(index)(); 0 }
            1 => u64::from(core::mem::transmute::<usize, fn(u32) -> u32>(index)(number)),
            2 => core::mem::transmute::<usize, fn(u64, u64) -> u64>(index)(7, 9),
            3 => core::mem::transmute::<usize, fn(f64) -> f64>(index)(0.5).to_bits(),
            _ => u64::from(core::mem::transmute::<usize, fn(u32, u32) -> u32>(index)(0xffff_fff0, 0xffff_fff0)),
        }
    };
    db.reply(&answer.to_le_bytes())
}
