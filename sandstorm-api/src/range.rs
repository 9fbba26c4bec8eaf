//! Ranges of ordered tables: read in batches, between which other invocations run.

use alloc::format;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::host::{Host, RangeLeft};
use crate::limits::RANGE_LIMIT;
use crate::{Error, Record};

/// Which end of a range comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The smallest key.
    Forward,
    /// The largest key.
    Backward,
}

/// Refuses limits of 0 and above [`RANGE_LIMIT`].
pub(crate) fn check_limit(limit: usize) -> Result<(), Error> {
    match limit {
        0 => Err(Error::invalid("a range's limit must be at least 1")),
        1..=RANGE_LIMIT => Ok(()),
        _ => Err(Error::invalid(format!(
            "a range's limit may be {RANGE_LIMIT}: read on from the last key that was answered"
        ))),
    }
}

/// A range under way; see [`Db::range`](crate::Db::range).
#[must_use = "a read does nothing until it is awaited"]
pub struct Range<'a, 'k> {
    host: Host<'a>,
    table: u64,
    left: RangeLeft<'k>,
    limit: usize,
    records: Vec<Record<'a>>,
}

impl<'a, 'k> Range<'a, 'k> {
    pub(crate) fn new(
        host: Host<'a>,
        table: u64,
        from: &'k [u8],
        to: &'k [u8],
        limit: usize,
        direction: Direction,
    ) -> Range<'a, 'k> {
        Range { host, table, left: RangeLeft::new(from, to, direction), limit, records: Vec::new() }
    }
}

impl<'a> Future for Range<'a, '_> {
    type Output = Result<Vec<Record<'a>>, Error>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Err(error) = check_limit(this.limit) {
            return Poll::Ready(Err(error));
        }
        loop {
            let limit = this.limit - this.records.len();
            if let Err(error) = this.host.range(this.table, &mut this.left, limit, &mut this.records) {
                return Poll::Ready(Err(error));
            }
            if this.left.is_finished() || this.records.len() >= this.limit {
                return Poll::Ready(Ok(core::mem::take(&mut this.records)));
            }
            if this.host.interleave() {
                return Poll::Pending;
            }
        }
    }
}
