//! expect: compile-error
//! rust-lang/rust 144155: a future that drops what it was given, after that is gone.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

struct NeedsDrop<'a>(&'a String);
impl Drop for NeedsDrop<'_> { fn drop(&mut self) { panic!("{}", self.0) } }
fn attack() -> &'static str {
    let v = String::from("gone gone");
    let x = NeedsDrop(&v);
    let c = async { core::future::ready(()).await; drop(x); };
    drop(v);
    let w = String::from("other ot");
    ""
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
