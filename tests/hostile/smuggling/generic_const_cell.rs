//! expect: refused or compile-error
//! An associated constant with a cell inside, behind a reference.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct S<const N: usize>;
impl<const N: usize> S<N> {
    const CELL: &'static core::cell::Cell<u32> = &core::cell::Cell::new(0);
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    S::<1>::CELL.set(S::<1>::CELL.get() + 1);
    db.reply(&S::<1>::CELL.get().to_le_bytes())
}
