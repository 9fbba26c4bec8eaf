//! expect: refused guard
//! An index that leaves lets another change the slice: the length of what lies behind the slice is read and compared.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

fn is_above(mut of: &[&[&[u8]]], at: usize, than: usize) -> bool {
    let other: &[&[&[u8]]] = &[];
    #[allow(unused_must_use, unreachable_code, clippy::no_effect)]
    {
        of[at][{ of = other; than }][{ return true; 0 }];
    }
    false
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let rows: [&[&[u8]]; 4] = [&[]; 4];
    db.reply(&[u8::from(is_above(&rows, 3, args.len()))])
}
