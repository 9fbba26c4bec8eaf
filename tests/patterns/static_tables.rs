//! Static tables, and a static counter: each call has it as it is at first.
//@ call: 0 -> 2 in call 1
//@ call: 3 -> 7 in call 1
//@ call: 6 -> 5 in call 1
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

use core::sync::atomic::{AtomicU32, Ordering};
use sandstorm_api::prelude::*;

static PRIMES: [u32; 4] = [2, 3, 5, 7];
static CALLS: AtomicU32 = AtomicU32::new(1);

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let text = core::str::from_utf8(args).map_err(|_| Error::invalid("text"))?;
    let x: usize = text.parse().map_err(|_| Error::invalid("a number"))?;
    let calls = CALLS.fetch_add(1, Ordering::Relaxed);
    db.reply(format!("{} in call {calls}", PRIMES[x % PRIMES.len()]).as_bytes())
}
