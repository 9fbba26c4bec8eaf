//! expect: refused trait-name
//! rust-lang/rust 84366: a trait with the name of a type.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::fmt::Debug;
trait str: Debug {}
fn erase(x: impl str) -> usize { 1 }
fn extend(x: &u8) -> Box<dyn Debug> { Box::new(1) }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(&s.as_bytes()[0]) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = format!("{o:?}");
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
