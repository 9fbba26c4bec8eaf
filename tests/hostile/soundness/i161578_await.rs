//! expect: refused guard
//! The same with an `.await` in the guard.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let mut kept: Option<Box<Box<u64>>> = Some(Box::new(Box::new(7)));
    match kept {
        Some(_) if { kept = None; yield_now().await; !args.is_empty() } && panic!() => Ok(()),
        Some(ref found) => db.reply(&found.to_le_bytes()),
        None => Ok(()),
    }
}
