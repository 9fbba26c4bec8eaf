//! Runs the steps in its arguments through the public API: each step is three bytes, an operation and two numbers. The
//! reply lists the result of every step. Made for the test in `calls.rs`, which knows the expected results.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use core::future::{Future, poll_fn};
use core::task::Poll;
use sandstorm_api::prelude::*;
use sandstorm_api::{Cursor, ErrorKind};

fn key(number: u8) -> [u8; 2] {
    [b'k', number % 8]
}

fn value(number: u8) -> Vec<u8> {
    let byte = if number & 1 == 0 { b'7' } else { b'x' };
    vec![byte; usize::from(number % 5) + 1]
}

/// Polls once and forgets or drops.
async fn once(future: impl Future, forget: bool) {
    let mut future = Box::pin(future);
    poll_fn(|context| {
        let _ = future.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
    if forget {
        core::mem::forget(future);
    }
}

async fn scanned(db: Db<'_>, table: TableId, limit: usize) -> Result<(u8, u8), Error> {
    let mut cursor = Some(Cursor::default());
    let (mut count, mut bytes) = (0_u8, 0_u8);
    while let Some(at) = cursor {
        let page = db.scan(table, at, limit)?;
        for record in &page.records {
            count = count.wrapping_add(1);
            bytes = bytes.wrapping_add(record.value().iter().fold(0, |sum, byte| sum ^ byte));
        }
        cursor = page.next;
    }
    Ok((count, bytes))
}

fn allocate(a: u8, b: u8) -> u8 {
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    for size in 0..usize::from(a % 32) {
        blocks.push(vec![b; size * size * 7]);
        if size % 3 == 0 {
            blocks.swap_remove(usize::from(b) % blocks.len());
        }
    }
    let wide: Box<[u128]> = vec![u128::from(b); usize::from(a)].into();
    let none: Vec<[u64; 0]> = vec![[]; usize::from(b)];
    let mut text = alloc::string::String::new();
    (0..a).for_each(|_| text.push('\u{e4}'));
    text.shrink_to_fit();
    let whole = blocks.iter().flatten().all(|byte| *byte == b) && wide.iter().all(|word| *word == u128::from(b));
    u8::from(whole && none.len() == usize::from(b) && text.chars().count() == usize::from(a))
}

fn said<T>(result: Result<T, Error>, good: impl FnOnce(T) -> u8) -> u8 {
    match result {
        Ok(value) => good(value),
        Err(error) => match error.kind() {
            ErrorKind::Conflict => b'c',
            ErrorKind::UnknownTable => b'u',
            ErrorKind::NotANumber => b'n',
            ErrorKind::TooLarge => b'l',
            _ => b'?',
        },
    }
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let table = db.table("numbers")?;
    for step in args.chunks_exact(3) {
        let (a, b) = (step[1], step[2]);
        let found = match step[0] % 14 {
            0 => match db.get(table, &key(a)).await? {
                Some(record) => {
                    db.reply(record.value())?;
                    b'g'
                }
                None => b'-',
            },
            1 => said(db.put(table, &key(a), &value(b)).await, |_| b'p'),
            2 => said(db.put(table, &key(a), &value(b)).if_absent().await, |_| b'p'),
            3 => said(db.delete(table, &key(a)).await, |there| if there { b'd' } else { b'-' }),
            4 => said(db.increment(table, &key(a), i64::from(b)).await, |sum| sum as u8),
            5 => {
                let (count, bytes) = scanned(db, table, usize::from(b) + 1).await?;
                db.reply(&[count])?;
                bytes
            }
            6 => {
                let keys: Vec<[u8; 2]> = (0..a).map(key).collect();
                db.get_many(table, &keys).await?.iter().flatten().count() as u8
            }
            7 => {
                once(db.put(table, &key(a), &value(b)), b > 128).await;
                once(db.get(table, &key(a)), b > 128).await;
                once(db.delete(table, &key(a)), b > 128).await;
                b'o'
            }
            8 => allocate(a, b),
            9 => {
                yield_now().await;
                b'y'
            }
            10 => said(db.table("none of that name"), |_| b'!'),
            11 => said(db.put(table, &vec![b; 70_000], b"v").await, |_| b'!'),
            12 => {
                let version = db.get(table, &key(a)).await?.map_or(0, |record| record.version());
                let wanted = if b & 1 == 0 { version } else { version.wrapping_add(1) };
                said(db.put(table, &key(a), &value(b)).if_version(wanted).await, |_| b'v')
            }
            _ if b == 0 => return Err(Error::invalid("as told")),
            _ => said(db.put(TableId(99), &key(a), b"v").await, |_| b'!'),
        };
        db.reply(&[found])?;
    }
    Ok(())
}
