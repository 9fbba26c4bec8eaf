//! expect: ok or limit or compile-error or refused
//! Impls that the compiler searches exponentially.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

trait T {
    fn t(&self) -> u8 {
        1
    }
}
struct A<X, Y>(X, Y);
impl T for u8 {}
impl<X: T, Y: T> T for A<X, Y> {}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    fn g<X: T>(_: X) {}
    g(<<<40*A(1u8, >>>1u8<<<40*)>>>);
    db.reply(b"x")
}
