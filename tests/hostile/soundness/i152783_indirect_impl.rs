//! expect: refused generic-trait
//! rust-lang/rust 152783: an impl for a trait object behind an associated type.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

trait Says<T> {
    type Out;
}

trait Names {
    type Named: ?Sized;
}

struct Behind;

impl Names for Behind {
    type Named = dyn Says<u8, Out = usize>;
}

type Alias = <Behind as Names>::Named;

impl<T> Says<T> for Alias {
    type Out = &'static u64;
}

fn out<T>(value: <Alias as Says<T>>::Out) -> &'static u64 {
    value
}

fn convert<T>(value: usize) -> &'static u64 {
    out::<u8>(value)
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let wild: &'static u64 = convert::<u8>(16);
    _db.reply(&wild.to_le_bytes())
}
