//! expect: refused projection
//! rust-lang/rust 100051: the projection is an argument of the trait.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::ops::{Deref, Mul};
use core::marker::PhantomData;
struct P<'a, 'b>(&'b &'a ());
struct Unit;
impl<'a, 'b> Deref for P<'a, 'b> { type Target = Unit; fn deref(&self) -> &Unit { &Unit } }
type Forget<T> = <T as Deref>::Target;
struct Z;
impl<'a, 'b> Mul<(&'a str, PhantomData<&'b ()>, Forget<P<'a,'b>>)> for Z {
    type Output = &'b str;
    fn mul(self, x: (&'a str, PhantomData<&'b ()>, Unit)) -> &'b str { x.0 }
}
fn attack() -> &'static str { let s = String::from("gone"); Z * (s.as_str(), PhantomData::<&'static ()>, Unit) }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
