//! expect: ok
//! The only clock there is: milliseconds, and it stands still during a poll.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let begun = db.now_ms();
    for round in 0..1_000_000_u64 {
        core::hint::black_box(round);
    }
    assert_eq!(db.now_ms(), begun);
    db.reply(b"x")
}
