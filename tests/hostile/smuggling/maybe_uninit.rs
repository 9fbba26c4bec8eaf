//! expect: refused
//! Reads memory that was never written.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let wild: [core::mem::MaybeUninit<u8>; 64] = [core::mem::MaybeUninit::uninit(); 64];
    let bytes = wild.map(|byte| unsafe { byte.assume_init() });
    _db.reply(&bytes)
}
