//! expect: killed TotalBudget
//! Copies memory for ever: the time is spent in the server's own memcpy.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let from = vec![1u8; 256 << 10];
    let mut to = vec![0u8; 256 << 10];
    loop {
        to.copy_from_slice(core::hint::black_box(&from));
    }
}
