//! expect: refused guard
//! An assignment through a pointer makes the compiler forget that a guard must not set the pointer: a reference of zero.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let number = 42_u64;
    let mut some = (Some(&number), 0_u8);
    let mut none = (None::<&u64>, 0_u8);
    let mut to = &mut some;
    match to.0 {
        Some(_) if { to.1 = 1; to = &mut none; false } => Ok(()),
        Some(found) => db.reply(&found.to_le_bytes()),
        None => Ok(()),
    }
}
