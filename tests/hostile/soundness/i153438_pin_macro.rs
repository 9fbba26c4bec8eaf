//! expect: refused
//! rust-lang/rust 153438: the pin macro coerces through a Deref of ours, so what it pins can move.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Holder<'a, T> {
    inner: Option<T>,
    out: &'a mut Option<T>,
}

impl<T> core::ops::Deref for Holder<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().unwrap()
    }
}

impl<T> core::ops::DerefMut for Holder<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().unwrap()
    }
}

impl<T> Drop for Holder<'_, T> {
    fn drop(&mut self) {
        *self.out = self.inner.take();
    }
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut slot = None;
    let holder = Holder { inner: Some(0u8), out: &mut slot };
    let pinned: core::pin::Pin<&mut u8> = core::pin::pin!(holder);
    _db.reply(&[*pinned])
}
