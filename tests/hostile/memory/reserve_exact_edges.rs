//! expect: ok
//! Asks for as much as there can be, and a little more.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let mut refused = 0u32;
    for size in [isize::MAX as usize, isize::MAX as usize - 15, usize::MAX >> 2, 1 << 40, (4 << 20) + 1] {
        let mut v: Vec<u8> = Vec::new();
        refused += u32::from(v.try_reserve_exact(size).is_err());
    }
    assert_eq!(refused, 5);
    db.reply(&refused.to_le_bytes())
}
