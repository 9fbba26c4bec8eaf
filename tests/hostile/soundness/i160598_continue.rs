//! expect: refused jump
//! The same with `continue`, in a function's second argument: a reference that is lent again counts from the call on, too.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

fn lend<'a>(kept: &'a mut Option<Box<u64>>, with: Box<u64>) -> &'a mut Option<Box<u64>> {
    *kept = Some(with);
    kept
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let mut kept: Option<Box<u64>> = None;
    let kept = &mut kept;
    let mut to: Option<&mut Option<Box<u64>>> = None;
    for _ in 0..1 {
        to = Some(lend(kept, if args.len() > 100 { continue } else { Box::new(1) }));
    }
    let Some(old) = &*kept else { return Ok(()) };
    if let Some(to) = to {
        *to = None;
    }
    let _other = Box::new(0x4141_4141_4141_4141_u64);
    db.reply(&old.to_le_bytes())
}
