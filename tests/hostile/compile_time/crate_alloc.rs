//! expect: refused path
//! What is closed of alloc, by way of the crate's own root.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use crate::alloc::alloc::Layout;
fn attack() -> String { let c = crate::alloc::ffi::CString::default(); crate::alloc::alloc::handle_alloc_error(Layout::new::<u8>()) }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
