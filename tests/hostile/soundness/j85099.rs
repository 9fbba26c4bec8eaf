//! expect: compile-error
//! rust-lang/rust 85099: DerefMut for a Pin of our own type.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::pin::Pin; use core::ops::{Deref, DerefMut}; use core::marker::PhantomPinned;
struct Local(PhantomPinned);
impl<'a> DerefMut for Pin<&'a Local> { fn deref_mut(&mut self) -> &mut Local { loop {} } }
fn attack() -> String { String::new() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
