//! expect: killed Panic or ok
//! Shifts by more than there are bits.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let by = 200 + args.len() as u32;
    let x = 1u64 << by;
    db.reply(&x.to_le_bytes())
}
