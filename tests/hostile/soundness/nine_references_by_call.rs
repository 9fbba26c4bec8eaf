//! expect: refused stale
//! The same by a method.
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

enum Never {}
fn never() -> Never { loop {} }
#[repr(C)]
enum Either<'a> {
    Slice(&'a [u8]),
    Words(usize, usize),
}
impl Either<'_> {
    fn forget(&mut self) -> bool {
        *self = Either::Words(1, 2);
        true
    }
}
fn length(x: &mut &mut &mut &mut &mut &mut &mut &mut &mut Either<'_>) -> usize {
    match *********x {
        Either::Slice(_) if x.forget() && match never() {} => 0,
        Either::Slice(ref found) => found.len(),
        Either::Words(at, _) => at,
    }
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let mut x = Either::Slice(b"x");
    db.reply(&(length(&mut &mut &mut &mut &mut &mut &mut &mut &mut x) as u64).to_le_bytes())
}
