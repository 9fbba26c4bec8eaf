//! expect: refused guard
//! The same with a slice: its pointer is set in an index behind the one that was checked, and eight bytes are written
//! outside of the shorter slice.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

fn write<'a>(mut to: &'a mut [[u64; 2]], other: &'a mut [[u64; 2]], at: usize) {
    to[at][{ to[0] = [1, 1]; to = other; 0 }] = 7;
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let (mut long, mut short) = (vec![[0; 2]; 100], vec![[0; 2]; 1]);
    write(&mut long, &mut short, 99);
    db.reply(&[])
}
