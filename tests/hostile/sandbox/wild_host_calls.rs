//! expect: refused unsafe
//! sandboxed: ok or failed or killed
//! variants: 120
//! Calls every function of the host with wild addresses, lengths and numbers.
#![no_std]
#![allow(warnings)]

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
    fn abort(cause: u32, text: u32, len: u32);
    fn grow(bytes: u32) -> u32;
    fn prefetch_many(table: u64, keys: u32, count: u32, hashes: u32) -> u32;
    fn prefetch_records(table: u64, hashes: u32, count: u32) -> u32;
    fn get_many(table: u64, keys: u32, hashes: u32, count: u32, out: u32) -> u32;
    fn commit(reads: u32, reads_len: u32, ranges: u32, ranges_len: u32, changes: u32, changes_len: u32) -> u32;
    fn range(table: u64, range: u32, out: u32, limit: u32, filled: u32) -> u32;
    fn range_keys(table: u64, range: u32, keys: u32) -> u32;
    fn get_copy(table: u64, key: u32, len: u32, to: u32, capacity: u32, value_len: u32) -> u32;
    fn args_len() -> u32;
    fn args_copy(to: u32);
    fn now_ms() -> i64;
    fn count(table: u64, range: u32, count: u32) -> u32;
    fn nth(table: u64, position: u64, keys: u32) -> u32;
    fn expiry(table: u64, hash: u64, key: u32, key_len: u32, expires_at_ms: u32) -> u32;
    fn touch(table: u64, key: u32, key_len: u32, ttl_ms: u64) -> u32;
    fn random(to: u32, len: u32) -> u32;
    fn now_us() -> i64;
    fn secret(name: u32, name_len: u32, to: u32, capacity: u32, len: u32) -> u32;
    fn log_line(level: u32, text: u32, len: u32) -> u32;
    fn call_begin(name: u32, name_len: u32, args: u32, args_len: u32, notes: u32, notes_len: u32) -> u32;
    fn call_end(code: u32) -> u32;
    fn call_part(part: u32, to: u32, capacity: u32, len: u32) -> u32;
    fn call_return(notes: u32, len: u32) -> u32;
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
    let table = db.table("t")?.0;
    let mut n = Numbers(u64::from(number) << 7 | 1);
    // Bytes of its own that look like lists, among the wild addresses.
    let mut own = vec![0u32; 2048];
    own.iter_mut().for_each(|word| *word = n.next());
    let at = own.as_ptr() as u32;
    let mut address = |n: &mut Numbers| if n.next() % 2 == 0 { at + n.next() % 8192 } else { n.next() };
    for _ in 0..1_500 {
        let t = match n.next() % 3 { 0 => u64::from(n.next()), 1 => u64::MAX - u64::from(n.next()), _ => table };
        let hash = u64::from(n.next()) << 32 | u64::from(n.next());
        let (a, b, c, d) = (address(&mut n), address(&mut n), address(&mut n), address(&mut n));
        let (l, m) = (n.next(), n.next());
        unsafe {
            match n.next() % 37 {
                0 => prefetch(t, a, l, b),
                1 => prefetch_record(t, hash),
                2 => get(t, hash, a, l, b),
                3 => put(t, a, l % 70_000, b, m % 100_000, c, d),
                4 => delete(t, a, l, b),
                5 => increment(t, a, l, hash as i64, b),
                6 => scan(t, a, b, l, c),
                7 => table_by_name(a, l, b),
                8 => reply(a, l),
                9 => fail(l, a, m),
                10 if number % 8 == 0 => { abort(l, a, m); 0 }
                11 => grow(l),
                12 => prefetch_many(t, a, l % 40, b),
                13 => prefetch_records(t, a, l % 40),
                14 => get_many(t, a, b, l % 40, c),
                15 => commit(a, l % 2_000, b, m % 300, c, n.next() % 300),
                16 => range(t, a, b, l, c),
                17 => range_keys(t, a, b),
                18 => args_len(),
                19 if number % 8 == 1 => { args_copy(a); 0 }
                20 => now_ms() as u32,
                21 => core::arch::wasm32::memory_grow(0, l as usize) as u32,
                22 => core::arch::wasm32::memory_size(0) as u32,
                23 if number % 8 == 2 => { core::ptr::copy(a as *const u8, b as *mut u8, l as usize); 0 }
                23 if number % 8 == 3 => { core::ptr::write_bytes(a as *mut u8, m as u8, l as usize); 0 }
                24 => get_copy(t, a, l, b, m, c),
                25 => count(t, a, b),
                26 => nth(t, hash >> (l % 64), a),
                27 => expiry(t, hash, a, l, b),
                28 => touch(t, a, l % 70_000, hash),
                29 => random(a, l),
                30 => now_us() as u32,
                31 => secret(a, l, b, m, c),
                32 => log_line(m % 6, a, l),
                33 => call_begin(a, l % 9, b, m % 300_000, c, n.next() % 300_000),
                34 => call_end(a),
                35 => call_part(l % 5, a, m, b),
                36 => call_return(a, l % 300_000),
                _ => 0,
            };
        }
    }
    Ok(())
}
