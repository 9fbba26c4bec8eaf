//! expect: limit or compile-error
//! A loop that the compiler would have to run.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const ENDLESS: u64 = {
    let mut turns = 0u64;
    while turns < u64::MAX {
        turns += 1;
    }
    turns
};

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(&ENDLESS.to_le_bytes())
}
