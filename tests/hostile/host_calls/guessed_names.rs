//! expect: failed UnknownTable
//! Names a table that another tenant has.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    db.table("other tenant's")?;
    Ok(())
}
