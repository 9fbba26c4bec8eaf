//! expect: ok
//! Looks for what another call left in the arena: allocated memory must read as what was written.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let zeros = vec![0u8; 100_000];
    let clean = zeros.iter().all(|byte| *byte == 0);
    if clean { Ok(()) } else { Err(Error::new("memory was not zeroed")) }
}
