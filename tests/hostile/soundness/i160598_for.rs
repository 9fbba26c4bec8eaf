//! expect: refused jump
//! The same out of what a `for` inside of the argument goes through, which leaves the loop around it.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let mut kept: Option<Option<Box<u64>>> = None;
    let mut to: Option<&mut Option<Box<u64>>> = None;
    loop {
        to = Some(kept.insert({
            for _ in if args.len() > 100 { break } else { 0..1 } {}
            Some(Box::new(1))
        }));
        break;
    }
    let Some(Some(old)) = &kept else { return Ok(()) };
    if let Some(to) = to {
        *to = None;
    }
    db.reply(&old.to_le_bytes())
}
