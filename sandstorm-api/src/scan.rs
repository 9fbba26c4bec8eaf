//! Scans of tables, in no particular order: at once, or with waits for records on the disk.

use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::Error;
use crate::abi::{CURSOR_FINISHED, CURSOR_WAITS, RawCursor, RawRecord, STATUS_NOT_SCANNED};
use crate::db::Db;
use crate::host::HostHandle;
use crate::record::{Record, TableId};

/// Records asked from the host in one call: bounds the work between two chances to end the invocation.
const BATCH: usize = 64;

/// Position of a scan; `Cursor::default()` is the start of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(RawCursor);

impl Cursor {
    /// The position of this number, which [`Cursor::number`] has given; 0: the start.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// assert_eq!(Cursor::at(0), Cursor::default());
    /// ```
    pub fn at(number: u64) -> Cursor {
        Cursor(RawCursor { position: number, finished: 0 })
    }

    /// A number for the position, with which a later call of the extension goes on.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// assert_eq!(Cursor::at(7).number(), 7);
    /// ```
    pub fn number(self) -> u64 {
        self.0.position
    }

    /// The position, or `None` behind the whole table.
    fn unless_finished(at: RawCursor) -> Option<Cursor> {
        (at.finished != CURSOR_FINISHED).then_some(Cursor(RawCursor { finished: 0, ..at }))
    }
}

/// One page of a scan.
#[derive(Clone, Debug)]
pub struct ScanPage<'a> {
    /// The records, at most as many as asked for.
    pub records: Vec<Record<'a>>,
    /// Start of the next page; `None` when the whole table was seen.
    pub next: Option<Cursor>,
}

impl<'a> Db<'a> {
    /// Reads up to `limit` records of the table from `cursor` on, in no particular order. A record that stays unchanged
    /// during a whole scan is seen at least once.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let page = db.scan(table, Cursor::default(), 64)?;
    /// let bytes: usize = page.records.iter().map(|record| record.value().len()).sum();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `UnknownTable`; `Invalid` for a limit of 0, and for a table of the mode `spill`, of which [`Db::scan_page`]
    /// reads pages.
    pub fn scan(&self, table: TableId, cursor: Cursor, limit: usize) -> Result<ScanPage<'a>, Error> {
        check_limit(limit)?;
        let mut at = cursor.0;
        let mut records = Vec::new();
        let mut batch = [RawRecord::EMPTY; BATCH];
        while records.len() < limit && at.finished != CURSOR_FINISHED {
            let want = BATCH.min(limit - records.len());
            let Poll::Ready(filled) = self.host.scan(table.0, &mut at, &mut batch[..want]) else {
                return Err(Error::from_status(STATUS_NOT_SCANNED));
            };
            records.extend(batch[..filled?].iter().map(|raw| self.host.record(*raw)));
        }
        Ok(ScanPage { records, next: Cursor::unless_finished(at) })
    }

    /// Reads a page as [`Db::scan`] does, of a table of the mode `spill` as well: it waits for records that are on the
    /// disk, some at a time. All of a page stay in memory until the invocation ends, so a large table takes many
    /// invocations, each of which replies with the [number](Cursor::number) of the next page.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # async fn example(db: Db<'_>, table: TableId) -> Result<(), Error> {
    /// let page = db.scan_page(table, Cursor::default(), 64).await?;
    /// let bytes: usize = page.records.iter().map(|record| record.value().len()).sum();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `UnknownTable`; `Invalid` for a limit of 0, and for a table in front of a backing; `NotRead` where the disk does
    /// not read the page's next record, and `OutOfMemory` where there is no memory for it: the text says how many
    /// records come before it.
    pub fn scan_page(&self, table: TableId, cursor: Cursor, limit: usize) -> PageScan<'a> {
        let at = RawCursor { finished: CURSOR_WAITS, ..cursor.0 };
        PageScan { host: self.host, table: table.0, at, limit, records: Vec::new() }
    }
}

fn check_limit(limit: usize) -> Result<(), Error> {
    if limit == 0 { Err(Error::invalid("a scan's limit must be at least 1")) } else { Ok(()) }
}

/// A page of a scan under way; see [`Db::scan_page`].
#[must_use = "a scan does nothing until it is awaited"]
pub struct PageScan<'a> {
    host: HostHandle<'a>,
    table: u64,
    at: RawCursor,
    limit: usize,
    records: Vec<Record<'a>>,
}

impl<'a> Future for PageScan<'a> {
    type Output = Result<ScanPage<'a>, Error>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        check_limit(this.limit)?;
        let mut batch = [RawRecord::EMPTY; BATCH];
        loop {
            let want = BATCH.min(this.limit - this.records.len());
            let Poll::Ready(filled) = this.host.scan(this.table, &mut this.at, &mut batch[..want]) else {
                return Poll::Pending;
            };
            let filled = filled.map_err(|error| error.behind_records(this.records.len()))?;
            this.records.extend(batch[..filled].iter().map(|raw| this.host.record(*raw)));
            if this.records.len() >= this.limit || this.at.finished == CURSOR_FINISHED {
                let records = core::mem::take(&mut this.records);
                return Poll::Ready(Ok(ScanPage { records, next: Cursor::unless_finished(this.at) }));
            }
            if this.host.interleave() {
                return Poll::Pending;
            }
        }
    }
}
