//! expect: refused stale
//! The guard of two patterns at once takes what the second names.
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

enum Never {}
fn never() -> Never { loop {} }
enum Kept { Number(u64), Box(Box<Box<u64>>) }
impl Kept {
    fn forget(&mut self) -> bool {
        *self = Kept::Number(7);
        true
    }
}
fn read(mut x: Kept) -> u64 {
    match x {
        Kept::Number(_) | Kept::Box(_) if x.forget() && match never() {} => 0,
        Kept::Box(ref found) => ***found,
        Kept::Number(number) => number,
    }
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let x = Kept::Box(Box::new(Box::new(7)));
    db.reply(&(read(x) as u64).to_le_bytes())
}
