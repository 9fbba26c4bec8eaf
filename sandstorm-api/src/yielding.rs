//! Yields to other invocations.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

/// Lets other invocations run; see [`yield_now`].
#[must_use = "yielding does nothing until it is awaited"]
pub struct YieldNow(bool);

/// Lets other invocations run and starts a new slice of the budget: `yield_now().await` in a long computation.
///
/// ```
/// # use sandstorm_api::prelude::*;
/// # async fn example(parts: &[Vec<u64>]) -> u64 {
/// let mut sum = 0;
/// for part in parts {
///     sum += part.iter().sum::<u64>();
///     yield_now().await;
/// }
/// # sum }
/// ```
pub fn yield_now() -> YieldNow {
    YieldNow(false)
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.0 {
            return Poll::Ready(());
        }
        self.0 = true;
        Poll::Pending
    }
}
