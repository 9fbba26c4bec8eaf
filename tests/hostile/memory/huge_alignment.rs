//! expect: refused attribute
//! A type with an alignment of half a gibibyte.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[repr(align(536870912))]
struct Aligned(u8);

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let aligned = Box::new(Aligned(7));
    _db.reply(&[aligned.0])
}
