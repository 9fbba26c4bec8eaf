//! expect: refused guard
//! A guard that cannot succeed may change what is matched: the next arm finds a box that is not there.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let mut kept: Option<Box<Box<u64>>> = Some(Box::new(Box::new(7)));
    match kept {
        Some(_) if { kept = None; false } && panic!() => Ok(()),
        Some(ref found) => db.reply(&found.to_le_bytes()),
        None => Ok(()),
    }
}
