//! expect: refused projection
//! rust-lang/rust 100051: the alias takes the associated type without naming its trait.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::ops::{Deref, Mul};
use core::marker::PhantomData;
struct P<'a, 'b>(&'b &'a ());
struct Unit;
impl<'a, 'b> Deref for P<'a, 'b> { type Target = Unit; fn deref(&self) -> &Unit { &Unit } }
type Forget<T: Deref> = T::Target;
impl<'a, 'b> Mul<(&'a str, PhantomData<&'b ()>)> for Forget<P<'a, 'b>> {
    type Output = &'b str;
    fn mul(self, x: (&'a str, PhantomData<&'b ()>)) -> &'b str { x.0 }
}
fn attack() -> &'static str { let s = String::from("gone"); Unit * (s.as_str(), PhantomData::<&'static ()>) }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
