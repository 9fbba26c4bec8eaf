//! expect: refused dyn
//! A trait object of its own trait: the shape that most of the holes need.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

trait Named {
    fn number(&self) -> u8;
}

struct Thing;

impl Named for Thing {
    fn number(&self) -> u8 {
        7
    }
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let named: &dyn Named = &Thing;
    _db.reply(&[named.number()])
}
