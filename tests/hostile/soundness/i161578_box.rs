//! expect: refused guard
//! The same behind a box, in a closure.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

enum Kept { Box(Box<u64>), Number(u64) }
fn read(mut kept: Box<Kept>, number: u64) -> u64 {
    let mut look = || match *kept {
        Kept::Box(_) if { *kept = Kept::Number(number); false } && unreachable!() => 0,
        Kept::Box(ref found) => **found,
        Kept::Number(number) => number,
    };
    look()
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    db.reply(&read(Box::new(Kept::Box(Box::new(1))), 8).to_le_bytes())
}
