//! expect: refused jump
//! A jump out of a method's argument leaves the receiver's borrow forgotten behind it.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let mut kept: Option<Option<Box<u64>>> = None;
    let mut to: Option<&mut Option<Box<u64>>> = None;
    'out: {
        to = Some(kept.insert(match true {
            false => break 'out,
            true => Some(Box::new(1)),
        }));
    }
    let Some(Some(old)) = &kept else { return Ok(()) };
    if let Some(to) = to {
        *to = None;
    }
    let _other = Box::new(0x4141_4141_4141_4141_u64);
    db.reply(&old.to_le_bytes())
}
