//! expect: compile-error
//! A cell over a record that was read.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let table = db.table("t")?;
    let record = db.get(table, b"k").await?.ok_or(Error::invalid("none"))?;
    let value: &mut [u8] = core::convert::AsMut::as_mut(record.value());
    core::cell::Cell::from_mut(value).as_slice_of_cells()[0].set(1);
    db.reply(b"x")
}
