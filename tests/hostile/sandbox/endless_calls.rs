//! expect: refused unsafe
//! sandboxed: killed TotalBudget or killed OutOfMemory
//! variants: 20
//! Calls one function of the host for ever.
#![no_std]
#![allow(warnings)]

use sandstorm_api::abi::{RawChange, RawCursor, RawKey, RawRange, RawRangeRead, RawRead, RawRecord};
use sandstorm_api::prelude::*;

#[link(wasm_import_module = "sandstorm")]
unsafe extern "C" {
    fn prefetch(table: u64, key: u32, len: u32, hash: u32) -> u32;
    fn prefetch_record(table: u64, hash: u64) -> u32;
    fn get(table: u64, hash: u64, key: u32, len: u32, out: u32) -> u32;
    fn put(table: u64, key: u32, len: u32, value: u32, value_len: u32, how: u32, version: u32) -> u32;
    fn delete(table: u64, key: u32, len: u32, how: u32) -> u32;
    fn increment(table: u64, key: u32, len: u32, by: i64, sum: u32) -> u32;
    fn scan(table: u64, cursor: u32, out: u32, limit: u32, filled: u32) -> u32;
    fn table_by_name(name: u32, len: u32, table: u32) -> u32;
    fn reply(first: u32, len: u32) -> u32;
    fn fail(code: u32, text: u32, len: u32) -> u32;
    fn grow(bytes: u32) -> u32;
    fn prefetch_many(table: u64, keys: u32, count: u32, hashes: u32) -> u32;
    fn prefetch_records(table: u64, hashes: u32, count: u32) -> u32;
    fn get_many(table: u64, keys: u32, hashes: u32, count: u32, out: u32) -> u32;
    fn commit(reads: u32, reads_len: u32, ranges: u32, ranges_len: u32, changes: u32, changes_len: u32) -> u32;
    fn args_copy(to: u32);
}

/// The number of this call.
fn variant(args: &[u8]) -> u32 {
    args.try_into().map_or(0, u32::from_le_bytes)
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let number = variant(args);
    let t = db.table("t")?.0;
    let key = b"k".as_ptr() as u32;
    // Room for whatever the host writes.
    let mut room = vec![0u64; 3_000];
    let out = room.as_mut_ptr() as u32;
    let keys: Vec<[u32; 2]> = vec![[key, 1]; 32];
    let keys = keys.as_ptr() as u32;
    loop {
        unsafe {
            match number {
                0 => prefetch(t, key, 1, out),
                1 => prefetch_record(t, 7),
                2 => get(t, 0, key, 1, out),
                3 => put(t, key, 1, key, 1, 0, out),
                4 => delete(t, key, 1, 0),
                5 => increment(t, b"n".as_ptr() as u32, 1, 1, out),
                6 => { room[0] = 0; room[1] = 0; scan(t, out, out + 64, 256, out + 32) }
                7 => table_by_name(b"t".as_ptr() as u32, 1, out),
                8 => reply(key, 0),
                9 => fail(1, key, 1),
                10 => grow(0),
                11 => grow(u32::MAX),
                12 => prefetch_many(t, keys, 32, out),
                13 => prefetch_records(t, out, 32),
                14 => get_many(t, keys, out + 8192, 32, out),
                15 => commit(out, 1024, out, 0, 0, 0),
                16 => { args_copy(out); 0 }
                17 => { core::ptr::copy(out as *const u8, (out + 1) as *mut u8, 20_000); 0 }
                18 => { core::ptr::write_bytes(out as *mut u8, 0, 20_000); 0 }
                _ => core::arch::wasm32::memory_grow(0, core::hint::black_box(1)) as u32,
            };
        }
    }
}
