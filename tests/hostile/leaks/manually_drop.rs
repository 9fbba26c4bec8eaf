//! expect: ok
//! Wraps what it makes so that nothing drops it.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let kept = core::mem::ManuallyDrop::new(vec![1u8; 100_000]);
    _db.reply(&kept[..1])
}
