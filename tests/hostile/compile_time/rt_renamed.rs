//! expect: refused import
//! The wrapper's parts under another name.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

use sandstorm_api as harmless;
use harmless::rt as more;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
