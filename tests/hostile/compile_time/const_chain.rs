//! expect: limit or compile-error or ok
//! Arrays worked out at compile time, many times over.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

const A0: [u8; 4096] = [1; 4096];
const fn mix(x: [u8; 4096]) -> [u8; 4096] { let mut y = x; let mut i = 0; while i < 4096 { let mut j = 0; while j < 64 { y[i] = y[i].wrapping_mul(31).wrapping_add(x[(i * j) % 4096]); j += 1; } i += 1; } y }
<<<60*const B{n}: [u8; 4096] = mix(mix(mix(A0)));
>>>
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(&[<<<60*B{n}[0], >>>1]) }
