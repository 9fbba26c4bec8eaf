//! expect: refused guard
//! A slice becomes its address and length in a guard, behind nine references (as found by testers).
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

#[repr(C)]
enum Either<'a> {
    Slice(&'a [u8]),
    Words(usize, usize),
}
fn length(x: &mut &mut &mut &mut &mut &mut &mut &mut &mut Either<'_>) -> usize {
    match *********x {
        Either::Slice(_) if { *********x = Either::Words(1, 2); false } && panic!() => 0,
        Either::Slice(ref found) => found.len(),
        Either::Words(at, _) => at,
    }
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let mut x = Either::Slice(b"x");
    db.reply(&(length(&mut &mut &mut &mut &mut &mut &mut &mut &mut x) as u64).to_le_bytes())
}
