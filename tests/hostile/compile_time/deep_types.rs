//! expect: refused or limit or compile-error
//! A type nested fifty thousand deep.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub type Deep = <<<50000*Option<>>>u8<<<50000*> >>>;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
