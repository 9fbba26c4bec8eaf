//! expect: refused or limit or compile-error
//! Fifty thousand blocks.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    <<<50000*{>>><<<50000*}>>>
    Ok(())
}
