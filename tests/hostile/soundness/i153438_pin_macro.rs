//! expect: refused macro
//! rust-lang/rust 153438: the pin macro coerces through a Deref of ours, so a future that was polled moves.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

use core::pin::Pin;

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

fn wrongly_pinned<T>(value: T, poll: impl FnOnce(Pin<&mut T>)) -> T {
    let mut slot = None;
    {
        let holder = Holder { inner: Some(value), out: &mut slot };
        let pinned: Pin<&mut T> = core::pin::pin!(holder);
        poll(pinned);
    }
    slot.unwrap()
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let moved = wrongly_pinned(
        async {
            let text = [7u8; 64];
            let inside = core::hint::black_box(&text);
            yield_now().await;
            inside[0]
        },
        |future| {
            let mut context = core::task::Context::from_waker(core::task::Waker::noop());
            core::hint::black_box(core::future::Future::poll(future, &mut context).is_ready());
        },
    );
    let wild = Box::pin(moved).await;
    _db.reply(&[wild])
}
