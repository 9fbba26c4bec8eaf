//! expect: ok
//! Keys that say something else each time they are asked: hash and key must not be mixed up.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Fickle(core::cell::Cell<u8>);

impl AsRef<[u8]> for Fickle {
    fn as_ref(&self) -> &[u8] {
        self.0.set(self.0.get().wrapping_add(1));
        if self.0.get() % 2 == 0 { b"k" } else { b"another key of another length" }
    }
}

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    let keys = [Fickle(core::cell::Cell::new(0)), Fickle(core::cell::Cell::new(1))];
    let records = db.get_many(table, &keys).await?;
    db.reply(&[records.iter().flatten().count() as u8])
}
