//! expect: refused associated-bound
//! rust-lang/rust 84366: the trait is `Index`, which takes a value besides its receiver.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::ops::{Deref, Index};
enum Data<T> { No, Some(T) }
struct Own<I>(I);
impl<'a> Index<Data<&'a str>> for Data<&'a str> { type Output = str; fn index(&self, i: Data<&'a str>) -> &str { match i { Data::Some(x) => x, Data::No => "" } } }
impl<I: Iterator> Deref for Own<I> { type Target = Data<I::Item>; fn deref(&self) -> &Self::Target { &Data::No } }
fn launder<'l, J: Deref>(j: &'l J, x: J::Target) -> &'l str where J::Target: Index<J::Target, Output = str> + Sized { &j.deref()[x] }
fn attack() -> String {
    let it = Own(core::iter::repeat_with(|| ""));
    let r = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); launder(&it, Data::Some(s.as_str())) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(r);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
