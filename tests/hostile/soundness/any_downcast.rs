//! expect: refused dyn
//! Any: type ids tell lifetimes apart wrongly in several holes.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let boxed: Box<dyn core::any::Any> = Box::new(7u8);
    let byte = boxed.downcast_ref::<u8>().copied().unwrap_or(0);
    _db.reply(&[byte])
}
