//! expect: compile-error
//! rust-lang/rust 118876 with an input of a named lifetime.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn extend<'a, T: ?Sized>(input: &'a T) -> &'static T {
    struct Bounded<'a, 'b: 'static, T: ?Sized>(&'a T, [&'b (); 0]);
    let n: Box<dyn FnOnce(&'a T) -> Bounded<'static, '_, T>> = Box::new(|x| Bounded(x, []));
    n(input).0
}
fn attack() -> &'static str { let s = String::from("gone"); extend(s.as_str()) }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
