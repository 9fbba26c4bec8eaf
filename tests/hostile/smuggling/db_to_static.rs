//! expect: refused outlives
//! Wants to keep its database beyond the call.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

fn needs_static<T: 'static>(_: T) {}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    needs_static(_db);
    Ok(())
}
