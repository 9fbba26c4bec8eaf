//! Misbehaves in the way that its argument names, so that the server can show how it ends such code.
//!
//! - args: `table u64 | name` (integers little-endian; the name is the rest, in ASCII)
//! - `ok` replies with `ok`; `error` returns an error; every other name ends as the table says
//!
//! | name | what it does | how it ends |
//! |---|---|---|
//! | `loop` | computes for ever | killed: total budget |
//! | `loop-gets` | reads a record for ever | killed: total budget |
//! | `loop-scans` | scans the table for ever, without a yield | killed: total budget |
//! | `memcpy` | copies memory for ever | killed: total budget |
//! | `yields` | yields for ever | killed: total budget |
//! | `slow-drop` | returns, but drops a value whose drop never ends | killed: total budget |
//! | `recursion` | calls itself for ever | killed: stack overflow |
//! | `frame` | asks for one stack frame of 16 MiB | killed: stack overflow |
//! | `allocation` | allocates for ever, and keeps it all | killed: out of memory, or total budget on a busy machine |
//! | `one-allocation` | asks for 1 GiB at once | killed: out of memory |
//! | `panic` | panics | killed: panic |
//! | `division` | divides by zero | killed: panic (rustc checks the division) |
//! | `bounds` | indexes past the end of a slice | killed: panic |
//! | `unwrap` | unwraps a `None` | killed: panic |
//! | `overflow` | fails a checked addition | killed: panic |
//! | `reply` | replies without end | error: `TooLarge`, or killed: total budget on a busy machine |
//! | `puts` | writes records without end | error: `OutOfMemory` in a small table, else killed: a budget |
#![no_std]
#![forbid(unsafe_code)]

use core::hint::black_box;

use sandstorm_api::prelude::*;

const FORMAT: &str = "args: table u64, name (the rest): ok, error, loop, loop-gets, loop-scans, memcpy, yields, \
     slow-drop, recursion, frame, allocation, one-allocation, panic, division, bounds, unwrap, overflow, reply, puts";

/// Does what the name in `args` says.
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let (table, name) = args.split_first_chunk::<8>().ok_or(Error::invalid(FORMAT))?;
    let table = TableId(u64::from_le_bytes(*table));
    match name {
        b"ok" => db.reply(b"ok"),
        b"error" => Err(Error::new("failed as asked")),
        b"loop" => spin_forever(),
        b"loop-gets" => loop {
            black_box(db.get(table, b"any").await?);
        },
        b"loop-scans" => loop {
            black_box(db.scan(table, Default::default(), 64)?);
        },
        b"memcpy" => copy_forever(),
        b"yields" => loop {
            yield_now().await;
        },
        b"slow-drop" => {
            let _slow = SlowDrop;
            yield_now().await;
            db.reply(b"returned")
        }
        b"recursion" => {
            black_box(recurse(1));
            Ok(())
        }
        b"frame" => {
            black_box(huge_frame());
            Ok(())
        }
        b"reply" => loop {
            db.reply(&[0; 4096])?;
        },
        b"puts" => put_forever(db, table).await,
        other => run_faulting(other),
    }
}

/// The kinds that end in a fault of their own making.
fn run_faulting(name: &[u8]) -> Result<(), Error> {
    match name {
        b"allocation" => allocate_forever(),
        b"one-allocation" => {
            black_box(Vec::<u8>::with_capacity(1 << 30));
        }
        b"panic" => panic!("panicked as asked"),
        b"division" => {
            black_box(1 / black_box(0u32));
        }
        b"bounds" => {
            let three = [1u8, 2, 3];
            black_box(black_box(&three[..])[black_box(3)]);
        }
        b"unwrap" => {
            black_box(black_box(None::<u8>).unwrap());
        }
        b"overflow" => {
            black_box(black_box(u32::MAX).checked_add(1).expect("no room above the largest number"));
        }
        _ => return Err(Error::invalid(FORMAT)),
    }
    Ok(())
}

fn spin_forever() -> ! {
    let mut turns = 0u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}

fn copy_forever() -> ! {
    let from = vec![1u8; 256 << 10];
    let mut to = vec![0u8; 256 << 10];
    loop {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
    }
}

struct SlowDrop;

impl Drop for SlowDrop {
    fn drop(&mut self) {
        spin_forever()
    }
}

fn recurse(depth: u64) -> u64 {
    let here = black_box([depth; 16]);
    // Never true, but the compiler cannot know.
    if black_box(depth) == 0 {
        return 0;
    }
    black_box(recurse(depth + 1)) + here[0]
}

#[inline(never)]
fn huge_frame() -> u8 {
    let frame = black_box([1u8; 16 << 20]);
    frame[black_box(4096)]
}

fn allocate_forever() {
    let mut filled = Vec::new();
    loop {
        filled.push(vec![1u8; 64 << 10]);
        black_box(&filled);
    }
}

async fn put_forever(db: Db<'_>, table: TableId) -> Result<(), Error> {
    let mut number = 0u64;
    loop {
        db.put(table, &number.to_le_bytes(), &[0; 4096]).await?;
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use sandstorm_api::testing::TestStore;

    use super::*;

    fn args(name: &str) -> Vec<u8> {
        [&1u64.to_le_bytes(), name.as_bytes()].concat()
    }

    fn store() -> TestStore {
        let mut store = TestStore::new();
        store.table("t");
        store
    }

    #[test]
    fn the_harmless_ones() {
        let mut store = store();
        assert_eq!(store.invoke(run, &args("ok")), Ok(b"ok".to_vec()));
        assert_eq!(store.invoke(run, &args("error")), Err(Error::new("failed as asked")));
        for unknown in ["", "Loop", "panic!"] {
            assert_eq!(store.invoke(run, &args(unknown)), Err(Error::invalid(FORMAT)));
        }
        assert_eq!(store.invoke(run, b"short"), Err(Error::invalid(FORMAT)));
    }

    #[test]
    fn limits_end_what_the_store_counts() {
        let mut store = store();
        store.limit_polls(1000).limit_bytes(1 << 20);
        for endless in ["yields", "loop-gets"] {
            assert!(store.invoke(run, &args(endless)).unwrap_err().text().contains("polled more often"));
        }
        assert_eq!(store.invoke(run, &args("reply")).unwrap_err().kind(), ErrorKind::TooLarge);
        assert_eq!(store.invoke(run, &args("puts")).unwrap_err().kind(), ErrorKind::OutOfMemory);
    }

    #[test]
    #[should_panic(expected = "panicked as asked")]
    fn panic_panics() {
        let _never = store().invoke(run, &args("panic"));
    }

    #[test]
    #[should_panic(expected = "divide by zero")]
    fn division_panics() {
        let _never = store().invoke(run, &args("division"));
    }

    #[test]
    #[should_panic(expected = "index out of bounds")]
    fn bounds_panics() {
        let _never = store().invoke(run, &args("bounds"));
    }

    #[test]
    #[should_panic(expected = "`None` value")]
    fn unwrap_panics() {
        let _never = store().invoke(run, &args("unwrap"));
    }

    #[test]
    #[should_panic(expected = "no room above")]
    fn overflow_panics() {
        let _never = store().invoke(run, &args("overflow"));
    }
}
