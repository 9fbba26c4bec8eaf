//! A module that calls every function of the host by its plain import, and replies with what each answered, a line
//! each. Compiled by `tests/extensions/modules.rs`, without the extension API and without the standard library.
//! Arguments: the name of an ordered table, which is empty.
#![no_std]

use core::fmt::Write;
use core::ptr::{null, null_mut};

#[repr(C)]
#[derive(Clone, Copy)]
struct Record(*const u8, usize, *const u8, usize, u64, u32, u32);
#[repr(C)]
struct Key(*const u8, usize);
#[repr(C)]
struct How(u32, u32, u64, u64);
#[repr(C)]
struct Span(*const u8, usize, *const u8, usize, u32, u32, u32, u32);
#[repr(C)]
struct Keys(*mut u8, usize, *mut u32, usize, usize);
#[repr(C)]
struct Read(u64, u64, *const u8, usize, u64);
#[repr(C)]
struct Change(u64, *const u8, usize, *const u8, usize, u64, u32, u32);

#[link(wasm_import_module = "sandstorm")]
unsafe extern "C" {
    fn prefetch(table: u64, key: *const u8, key_len: usize, hash: *mut u64) -> u32;
    fn prefetch_record(table: u64, hash: u64) -> u32;
    fn get(table: u64, hash: u64, key: *const u8, key_len: usize, record: *mut Record) -> u32;
    fn get_copy(table: u64, key: *const u8, key_len: usize, to: *mut u8, room: usize, len: *mut usize) -> u32;
    fn put(t: u64, key: *const u8, key_len: usize, v: *const u8, len: usize, how: *const How, version: *mut u64)
    -> u32;
    fn delete(table: u64, key: *const u8, key_len: usize, how: *const How) -> u32;
    fn increment(table: u64, key: *const u8, key_len: usize, delta: i64, sum: *mut i64) -> u32;
    fn scan(table: u64, cursor: *mut [u64; 2], records: *mut Record, limit: usize, filled: *mut usize) -> u32;
    fn table_by_name(name: *const u8, name_len: usize, table: *mut u64) -> u32;
    fn reply(bytes: *const u8, len: usize) -> u32;
    fn fail(code: u32, text: *const u8, text_len: usize) -> u32;
    fn abort(cause: u32, text: *const u8, text_len: usize) -> !;
    fn grow(bytes: usize) -> u32;
    fn prefetch_many(table: u64, keys: *const Key, count: usize, hashes: *mut u64) -> u32;
    fn prefetch_records(table: u64, hashes: *const u64, count: usize) -> u32;
    fn get_many(table: u64, keys: *const Key, hashes: *const u64, count: usize, records: *mut Record) -> u32;
    fn commit(r: *const Read, reads: usize, s: *const u8, spans: usize, c: *const Change, changes: usize) -> u32;
    fn range(table: u64, range: *mut Span, records: *mut Record, limit: usize, filled: *mut usize) -> u32;
    fn range_keys(table: u64, range: *mut Span, keys: *mut Keys) -> u32;
    fn args_len() -> usize;
    fn args_copy(to: *mut u8);
    fn now_ms() -> u64;
    fn now_us() -> u64;
    fn count(table: u64, range: *const Span, count: *mut u64) -> u32;
    fn nth(table: u64, position: u64, keys: *mut Keys) -> u32;
    fn expiry(table: u64, hash: u64, key: *const u8, key_len: usize, expires_at_ms: *mut u64) -> u32;
    fn touch(table: u64, key: *const u8, key_len: usize, ttl_ms: u64) -> u32;
    fn random(to: *mut u8, len: usize) -> u32;
    fn secret(name: *const u8, name_len: usize, to: *mut u8, capacity: usize, len: *mut usize) -> u32;
    fn log_line(level: u32, text: *const u8, text_len: usize) -> u32;
    fn call_begin(n: *const u8, n_len: usize, a: *const u8, a_len: usize, notes: *const u8, notes_len: usize) -> u32;
    fn call_end(code: *mut u32) -> u32;
    fn call_part(part: u32, to: *mut u8, capacity: usize, len: *mut usize) -> u32;
    fn call_return(notes: *const u8, notes_len: usize) -> u32;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe { abort(1, b"panicked".as_ptr(), 8) }
}

/// What is written goes to the reply.
struct Out;

impl Write for Out {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        match unsafe { reply(text.as_ptr(), text.len()) } {
            0 => Ok(()),
            _ => Err(core::fmt::Error),
        }
    }
}

macro_rules! say {
    ($($text:tt)*) => { if writeln!(Out, $($text)*).is_err() { return 2; } };
}

const NONE: Record = Record(null(), 0, null(), 0, 0, 0, 0);

unsafe fn text<'a>(first: *const u8, len: usize) -> &'a str {
    unsafe { core::str::from_utf8(core::slice::from_raw_parts(first, len)).unwrap_or("?") }
}

static mut TABLE: u64 = 0;

#[unsafe(no_mangle)]
unsafe extern "C" fn sandstorm_start(_slot: u32, _invocation: u32) -> u32 {
    unsafe {
        let (mut name, mut table) = ([0; 16], 0);
        if args_len() > name.len() {
            fail(8, b"args: a table's name".as_ptr(), 20);
            return 2;
        }
        args_copy(name.as_mut_ptr());
        say!("table_by_name {}", table_by_name(name.as_ptr(), args_len(), &mut table));
        say!("unknown table {}", table_by_name(b"nowhere".as_ptr(), 7, &mut table));
        let time = now_ms();
        say!("now_ms {}", time > 1_600_000_000_000 && time < 1 << 43);
        let (a, b) = (b"a".as_ptr(), b"b".as_ptr());
        let mut version = 0;
        say!("put {} {}", put(table, a, 1, b"one".as_ptr(), 3, null(), &mut version), version > 0);
        let absent = How(1, 7, 0, 0);
        say!("put if absent {}", put(table, a, 1, b"two".as_ptr(), 3, &absent, null_mut()));
        say!("put another {}", put(table, b, 1, b"5".as_ptr(), 1, &absent, null_mut()));
        let (mut record, mut hash) = (NONE, 0);
        say!("prefetch {} {}", prefetch(table, a, 1, &mut hash), prefetch_record(table, hash));
        say!("get {}", get(table, hash, a, 1, &mut record));
        let in_window = record.0 as usize >= 1 << 31;
        say!("{}={} {} {}", text(record.2, record.3), text(record.0, record.1), record.4 == version, in_window);
        say!("get nothing {}", get(table, 0, b"c".as_ptr(), 1, &mut record));
        let (mut own, mut len) = ([0; 4], 0);
        say!("get_copy {} {}", get_copy(table, a, 1, own.as_mut_ptr(), 4, &mut len), text(own.as_ptr(), len));
        say!("get_copy without room {} {len}", get_copy(table, a, 1, own.as_mut_ptr(), 2, &mut len));
        let mut sum = 0;
        say!("increment {} {sum}", increment(table, b, 1, -7, &mut sum));
        say!("increment no number {}", increment(table, a, 1, 1, null_mut()));
        TABLE = table;
        more()
    }
}

unsafe fn more() -> u32 {
    unsafe {
        let table = TABLE;
        let keys = [Key(b"a".as_ptr(), 1), Key(b"c".as_ptr(), 1)];
        let (mut hashes, mut records, mut filled) = ([0; 2], [NONE; 4], 0);
        say!("prefetch_many {}", prefetch_many(table, keys.as_ptr(), 2, hashes.as_mut_ptr()));
        say!("prefetch_records {}", prefetch_records(table, hashes.as_ptr(), 2));
        say!("get_many {}", get_many(table, keys.as_ptr(), hashes.as_ptr(), 2, records.as_mut_ptr()));
        say!("{} {}", text(records[0].0, records[0].1), records[1].0.is_null());
        let (mut cursor, mut seen) = ([0; 2], 0);
        while cursor[1] == 0 {
            if scan(table, &mut cursor, records.as_mut_ptr(), 4, &mut filled) != 0 {
                return 2;
            }
            seen += filled;
        }
        say!("scan {seen}");
        let mut span = Span(b"a".as_ptr(), 1, null(), 0, 1, 0, 0, 0);
        say!("range {}", range(table, &mut span, records.as_mut_ptr(), 4, &mut filled));
        say!("{filled}: {} first, finished {}", text(records[0].2, records[0].3), span.6);
        let (mut bytes, mut ends) = ([0; 8], [0; 4]);
        let mut span = Span(b"a".as_ptr(), 1, b"b".as_ptr(), 1, 0, 0, 0, 0);
        let mut found = Keys(bytes.as_mut_ptr(), 8, ends.as_mut_ptr(), 4, 0);
        say!("range_keys {}", range_keys(table, &mut span, &mut found));
        say!("{} {} {}", found.4, ends[0], text(bytes.as_ptr(), 1));
        positions();
        say!("delete {}", delete(table, b"b".as_ptr(), 1, null()));
        say!("delete nothing {}", delete(table, b"b".as_ptr(), 1, null()));
        say!("grow {}", grow(1));
        0
    }
}

unsafe fn positions() -> u32 {
    unsafe {
        let (table, mut found) = (TABLE, 0);
        let span = Span(b"a".as_ptr(), 1, b"b".as_ptr(), 1, 0, 0, 0, 0);
        say!("count {} {found}", count(table, &span, &mut found));
        let (mut bytes, mut ends) = ([0; 8], [0; 4]);
        let mut keys = Keys(bytes.as_mut_ptr(), 8, ends.as_mut_ptr(), 4, 0);
        say!("nth {} {} {}", nth(table, 1, &mut keys), keys.4, text(bytes.as_ptr(), ends[0] as usize));
        keys.1 = 0;
        say!("nth without room {} {}", nth(table, 1, &mut keys), keys.4);
        say!("nth beyond {}", nth(table, 2, &mut keys));
        let (a, mut at_ms) = (b"a".as_ptr(), 1);
        say!("expiry {} {at_ms}", expiry(table, 0, a, 1, &mut at_ms));
        say!("touch {} {}", touch(table, a, 1, 60_000), touch(table, b"c".as_ptr(), 1, 5));
        say!("expiry {} {}", expiry(table, 0, a, 1, &mut at_ms), at_ms > now_ms() && at_ms <= now_ms() + 61_000);
        say!("expiry of nothing {}", expiry(table, 0, b"c".as_ptr(), 1, &mut at_ms));
        say!("now_us {}", (now_us() / 1000).abs_diff(now_ms()) < 60_000);
        let mut numbers = [0; 32];
        say!("random {} {}", random(numbers.as_mut_ptr(), 32), numbers.iter().any(|byte| *byte != 0));
        say!("too many {}", random(numbers.as_mut_ptr(), 5000));
        let (name, to, mut len) = (b"word".as_ptr(), numbers.as_mut_ptr(), 0);
        say!("secret {} {}", secret(name, 4, to, 32, &mut len), text(to, len));
        say!("secret without room {} {len}", secret(name, 4, to, 2, &mut len));
        say!("no secret {}", secret(name, 3, to, 32, &mut len));
        say!("log_line {} {}", log_line(2, b"beware".as_ptr(), 6), log_line(5, b"x".as_ptr(), 1));
        let mut code = 7;
        say!("call_end of nothing {}", call_end(&mut code));
        say!("call_begin {}", call_begin(b"nowhere".as_ptr(), 7, null(), 0, null(), 0));
        say!("call_begin beside it {}", call_begin(b"every".as_ptr(), 5, null(), 0, null(), 0));
        say!("call_end {} {code}", call_end(&mut code));
        let mut reason = [0; 64];
        say!("call_part {} {}", call_part(1, reason.as_mut_ptr(), 64, &mut len), text(reason.as_ptr(), len));
        say!("call_part without room {}", call_part(1, reason.as_mut_ptr(), 8, &mut len));
        say!("call_return {}", call_return(reason.as_ptr(), 1));
        0
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sandstorm_poll(_slot: u32, _invocation: u32) -> u32 {
    unsafe {
        let table = TABLE;
        let mut record = NONE;
        say!("polled again, get {}", get(table, 0, b"a".as_ptr(), 1, &mut record));
        let read = Read(table, 0, b"a".as_ptr(), 1, record.4);
        let change = Change(table, b"t".as_ptr(), 1, b"2".as_ptr(), 1, 0, 0, 0);
        say!("check {}", commit(&read, 1, null(), 0, null(), 0));
        say!("the rest is up to the commit");
        if commit(&read, 1, null(), 0, &change, 1) == 0 { 1 } else { 2 }
    }
}
