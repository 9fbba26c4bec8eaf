//! expect: refused unknown-mir
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

fn stop() -> ! { loop {} }
struct At(Result<Box<u64>, u64>);
impl At { fn set(&mut self, x: u64) -> bool { self.0 = Err(x); false } }
fn f(y: At, at: u64) -> u64 {
    fn g(mut x: At, at: u64) -> u64 {
        match x.0 {
            Ok(_) if x.set(at) && stop() => 0,
            Ok(ref found) => **found,
            Err(_) => 1,
        }
    }
    g(y, at)
}
mod f { pub fn g() -> u64 { 1 } }
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    db.reply(&(f(At(Ok(Box::new(1))), 0x4141_4141_4141) + f::g()).to_le_bytes())
}
