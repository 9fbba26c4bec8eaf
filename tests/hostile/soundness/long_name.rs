//! expect: refused guard
//! A place whose text is longer than 4,096 bytes (as found by testers).
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

struct <<<1050*Name>>><T>(T);
struct Outer(<<<1050*Name>>><Box<Option<Box<Box<u64>>>>>);
fn read(mut x: Outer) -> u64 {
    match *x.0.0 {
        Some(_) if { *x.0.0 = None; false } && panic!() => 0,
        Some(ref found) => ***found,
        None => 1,
    }
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let x = Outer(<<<1050*Name>>>(Box::new(Some(Box::new(Box::new(7))))));
    db.reply(&(read(x) as u64).to_le_bytes())
}
