//! expect: refused impl-target
//! rust-lang/rust 100051: implied bounds from a projection in the head of an impl.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

trait Forget {
    type Unit;
}

impl<T> Forget for T {
    type Unit = ();
}

trait Extend<'a, 'b> {
    fn extend(self, value: &'a str) -> &'b str;
}

impl<'a, 'b> Extend<'a, 'b> for <&'b &'a () as Forget>::Unit
where
    for<'x, 'y> &'x &'y (): Forget,
{
    fn extend(self, value: &'a str) -> &'b str {
        value
    }
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let kept = <() as Extend<'_, '_>>::extend((), &String::from("gone at the end of this line"));
    _db.reply(kept.as_bytes())
}
