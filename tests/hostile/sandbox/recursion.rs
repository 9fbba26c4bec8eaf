//! expect: refused fn-pointer
//! sandboxed: killed StackOverflow or killed TotalBudget
//! variants: 4
//! Calls itself for ever: with nothing in memory, with much, by a pointer, and with many arguments.
#![no_std]
#![allow(warnings)]

use sandstorm_api::prelude::*;

/// The number of this call.
fn variant(args: &[u8]) -> u32 {
    args.try_into().map_or(0, u32::from_le_bytes)
}

#[inline(never)]
fn bare(n: u64) -> u64 {
    if n == 0 { 0 } else { bare(core::hint::black_box(n - 1)).wrapping_mul(n) }
}

#[inline(never)]
fn large(n: u64) -> u64 {
    let block = core::hint::black_box([n as u8; 3000]);
    if n == 0 { 0 } else { large(n - 1) + u64::from(block[n as usize % 3000]) }
}

#[inline(never)]
fn pointed(n: u64) -> u64 {
    let f: fn(u64) -> u64 = core::hint::black_box(pointed);
    if n == 0 { 0 } else { f(n - 1) ^ n }
}

#[inline(never)]
fn wide(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64, i: u64, j: u64, k: u64, l: u64) -> u64 {
    if a == 0 { l } else { wide(a - 1, c, d, e, f, g, h, i, j, k, l, b).wrapping_add(a * 3 + l) }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let deep = core::hint::black_box(u64::MAX);
    let answer = match variant(args) {
        0 => bare(deep),
        1 => large(deep),
        2 => pointed(deep),
        _ => wide(deep, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11),
    };
    db.reply(&answer.to_le_bytes())
}
