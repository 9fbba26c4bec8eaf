//! expect: ok or limit or compile-error
//! Closures in closures: type names that double.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let f0 = |x: u64| x + 1;
    let f1 = move |x: u64| f0(f0(x));
    let f2 = move |x: u64| f1(f1(x));
    let f3 = move |x: u64| f2(f2(x));
    let f4 = move |x: u64| f3(f3(x));
    let f5 = move |x: u64| f4(f4(x));
    let f6 = move |x: u64| f5(f5(x));
    let f7 = move |x: u64| f6(f6(x));
    let f8 = move |x: u64| f7(f7(x));
    let f9 = move |x: u64| f8(f8(x));
    let f10 = move |x: u64| f9(f9(x));
    let f11 = move |x: u64| f10(f10(x));
    let f12 = move |x: u64| f11(f11(x));
    let f13 = move |x: u64| f12(f12(x));
    let f14 = move |x: u64| f13(f13(x));
    let f15 = move |x: u64| f14(f14(x));
    let f16 = move |x: u64| f15(f15(x));
    let f17 = move |x: u64| f16(f16(x));
    let f18 = move |x: u64| f17(f17(x));
    let f19 = move |x: u64| f18(f18(x));
    let f20 = move |x: u64| f19(f19(x));
    let f21 = move |x: u64| f20(f20(x));
    let f22 = move |x: u64| f21(f21(x));
    let f23 = move |x: u64| f22(f22(x));
    let f24 = move |x: u64| f23(f23(x));
    _db.reply(&f24(1).to_le_bytes())
}
