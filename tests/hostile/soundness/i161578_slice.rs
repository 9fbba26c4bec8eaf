//! expect: refused guard
//! The same with a slice, whose length was looked at.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

fn first(mut of: &[Box<u64>]) -> u64 {
    match of {
        [_, ..] if { of = &[]; false } && panic!() => 0,
        [found, ..] => **found,
        _ => 2,
    }
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    db.reply(&first(&[Box::new(1)]).to_le_bytes())
}
