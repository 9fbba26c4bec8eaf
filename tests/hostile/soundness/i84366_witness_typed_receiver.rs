//! expect: refused self-lifetime
//! rust-lang/rust 84366: the same, with the receiver's type.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(b"x") }
trait Ext: Copy { fn ext<'l>(self: &'l Self, x: Self) -> &'l str; }
impl Ext for &str { fn ext<'l>(self: &'l Self, x: Self) -> &'l str { x } }
