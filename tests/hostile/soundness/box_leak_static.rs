//! expect: refused erased
//! Memory of the arena called static.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let r: &'static mut [u8] = Box::leak(vec![7u8; 100].into_boxed_slice());
    db.reply(r)
}
