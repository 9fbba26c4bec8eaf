//! expect: refused guard
//! rust-lang/rust 161578 behind a box in a field, where the prelude names the box (as found by testers).
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

struct Outer { inner: Box<Inner> }
struct Inner { kept: Option<Box<Box<u64>>> }
fn read(mut x: Outer) -> u64 {
    match x.inner.kept {
        Some(_) if { x.inner.kept = None; false } && panic!() => 0,
        Some(ref found) => ***found,
        None => 1,
    }
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let x = Outer { inner: Box::new(Inner { kept: Some(Box::new(Box::new(7))) }) };
    db.reply(&(read(x) as u64).to_le_bytes())
}
