//! expect: refused stale
//! An element of an array in a tuple in a box behind references, by an index.
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

enum Never {}
fn never() -> Never { loop {} }
struct Outer { pair: (u8, [Option<Box<Box<u64>>>; 2]) }
fn read(x: &mut &mut Box<Outer>, at: usize) -> u64 {
    match x.pair.1[at] {
        Some(_) if x.pair.1[at].take().is_none() && match never() {} => 0,
        Some(ref found) => ***found,
        None => 1,
    }
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let mut x = Box::new(Outer { pair: (1, [None, Some(Box::new(Box::new(7)))]) });
    db.reply(&(read(&mut &mut x, 1) as u64).to_le_bytes())
}
