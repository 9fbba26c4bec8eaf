//! expect: refused or limit or compile-error
//! A type that grows with every step of the trait solver.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Twice<T>(T, T);
trait Grow {
    fn len(&self) -> usize;
}
impl<T> Grow for T
where
    Twice<T>: Grow,
{
    fn len(&self) -> usize {
        1
    }
}
fn grow<T: Grow>(t: T) -> T {
    t
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    grow(((),)).len();
    Ok(())
}
