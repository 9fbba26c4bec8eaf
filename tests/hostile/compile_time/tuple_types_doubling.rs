//! expect: limit or compile-error or ok
//! A type whose size doubles twenty-eight times.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

type A = (u8, u8);
type B<T> = (T, T);
type C<T> = B<B<B<B<T>>>>;
type D = C<C<C<C<C<C<C<A>>>>>>>;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(&core::mem::size_of::<D>().to_le_bytes())
}
