//! Ranges of ordered tables: read in batches, between which other invocations run.

use alloc::format;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::Error;
use crate::host::{HostHandle, RangeRemainder};
use crate::keys::Keys;
use crate::limits::{KEY_BUFFER_BYTES, RANGE_LIMIT};
use crate::record::Record;

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

/// Reads a range, and keeps what is left of it.
struct RangeReader<'a, 'k> {
    host: HostHandle<'a>,
    table: u64,
    left: RangeRemainder<'k>,
    limit: usize,
}

impl<'a, 'k> RangeReader<'a, 'k> {
    /// Makes `read` append the next part to what was found, until that is all, or `limit`; others may run in between.
    fn poll<T: Default>(
        &mut self,
        found: &mut T,
        len: impl Fn(&T) -> usize,
        read: impl Fn(HostHandle<'a>, u64, &mut RangeRemainder<'k>, usize, &mut T) -> Result<(), Error>,
    ) -> Poll<Result<T, Error>> {
        if let Err(error) = check_limit(self.limit) {
            return Poll::Ready(Err(error));
        }
        loop {
            if let Err(error) = read(self.host, self.table, &mut self.left, self.limit - len(found), found) {
                return Poll::Ready(Err(error));
            }
            if self.left.is_finished() || len(found) >= self.limit {
                return Poll::Ready(Ok(core::mem::take(found)));
            }
            if self.host.interleave() {
                return Poll::Pending;
            }
        }
    }
}

/// A range under way; see [`Db::range`](crate::Db::range).
#[must_use = "a read does nothing until it is awaited"]
pub struct Range<'a, 'k> {
    asked: RangeReader<'a, 'k>,
    records: Vec<Record<'a>>,
}

impl<'a, 'k> Range<'a, 'k> {
    pub(crate) fn new(host: HostHandle<'a>, table: u64, left: RangeRemainder<'k>, limit: usize) -> Range<'a, 'k> {
        Range { asked: RangeReader { host, table, left, limit }, records: Vec::new() }
    }
}

impl<'a> Future for Range<'a, '_> {
    type Output = Result<Vec<Record<'a>>, Error>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let Range { asked, records } = self.get_mut();
        asked.poll(records, Vec::len, |host, table, left, limit, records| host.range(table, left, limit, records))
    }
}

/// A range of keys under way; see [`Db::range_keys`](crate::Db::range_keys).
#[must_use = "a read does nothing until it is awaited"]
pub struct RangeKeys<'a, 'k> {
    asked: RangeReader<'a, 'k>,
    keys: Keys,
}

impl<'a, 'k> RangeKeys<'a, 'k> {
    pub(crate) fn new(host: HostHandle<'a>, table: u64, left: RangeRemainder<'k>, limit: usize) -> RangeKeys<'a, 'k> {
        RangeKeys { asked: RangeReader { host, table, left, limit }, keys: Keys::default() }
    }
}

impl Future for RangeKeys<'_, '_> {
    type Output = Result<Keys, Error>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let RangeKeys { asked, keys } = self.get_mut();
        asked.poll(keys, Keys::len, |host, table, left, limit, keys| {
            let (had, mut room) = (keys.len(), KEY_BUFFER_BYTES);
            loop {
                host.range_keys(table, left, limit, room, keys)?;
                if keys.len() > had || left.is_finished() {
                    return Ok(());
                }
                // The next key is longer; its length is not known.
                room *= 2;
            }
        })
    }
}
