//! expect: killed Panic
//! A key that panics when it is asked.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Loud;

impl AsRef<[u8]> for Loud {
    fn as_ref(&self) -> &[u8] {
        panic!("asked")
    }
}

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    db.get_many(table, &[Loud]).await?;
    Ok(())
}
