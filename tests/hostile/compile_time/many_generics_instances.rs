//! expect: ok or limit or compile-error
//! One function for six hundred types.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[derive(Default)]
struct N<const K: usize>([u8; 3]);

fn f<const K: usize>(n: N<K>) -> usize {
    n.0.iter().map(|b| usize::from(*b) + K).fold(K, |a, b| a.rotate_left(3) ^ b)
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let mut sum = 0;
<<<600*    sum ^= f(N::<{n}>::default());
>>>    db.reply(&sum.to_le_bytes())
}
