//! expect: refused guard
//! The same with an element of an array, by an index of its own.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

fn first(mut of: [Option<Box<Box<u64>>>; 2], at: usize) -> u64 {
    match of[at] {
        Some(_) if { of[1 - (1 - at)] = None; false } && panic!() => 0,
        Some(ref found) => ***found,
        None => 2,
    }
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    db.reply(&first([Some(Box::new(Box::new(1))), None], args.len()).to_le_bytes())
}
