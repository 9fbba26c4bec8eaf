//! expect: refused dyn
//! rust-lang/rust 85099: Pin of a reference to a local type, whose DerefMut is ours.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

use core::ops::DerefMut;
use core::pin::Pin;

pub trait Local {}

impl<'a> DerefMut for Pin<&'a dyn Local> {
    fn deref_mut(&mut self) -> &mut (dyn Local + 'static) {
        loop {}
    }
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    Ok(())
}
