//! expect: refused generic-trait
//! rust-lang/rust 161404: a higher-ranked projection inside of a function pointer hides that two impls overlap.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Wrap<T>(T);

trait Forget {
    type Out;
}

impl<T> Forget for T {
    type Out = u16;
}

trait Probe {}
impl<'c> Probe for &'c Wrap<for<'a> fn(<&'a &'c u64 as Forget>::Out)> {}

trait Mark {}
impl Mark for fn(u16) {}

trait Select {
    type Chosen;
}

impl<X> Select for X
where
    for<'d> &'d Wrap<X>: Probe,
{
    type Chosen = usize;
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
