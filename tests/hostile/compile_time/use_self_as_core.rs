//! expect: refused or compile-error
//! A module of its own under the name of core.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

mod core {
    pub mod mem {
        pub fn swap() {}
    }
}
use self::core as alloc;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(b"x")
}
