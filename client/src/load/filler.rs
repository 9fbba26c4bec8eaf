//! Fills a table with the records of a load, as fast as the server takes them.

use super::Data;
use super::graph::GraphRecordSource;
use super::record_source::RecordSource;
use crate::raw::{Connection, operation_error};
use crate::{Config, Error, PutOptions, limits};
use std::time::{Duration, Instant};

/// The result of filling the tables.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FillSummary {
    /// Records written: plain ones, links and lists.
    pub records: u64,
    /// Time that it took.
    pub took: Duration,
}

impl RecordSource for Data {
    fn total(&self) -> u64 {
        self.items_total()
    }

    fn first(&self) -> Option<u64> {
        (self.items_total() > 0).then_some(0)
    }

    fn after(&self, item: u64) -> Option<u64> {
        (item + 1 < self.items_total()).then_some(item + 1)
    }

    fn write(&self, item: u64, key: &mut Vec<u8>, value: &mut Vec<u8>) -> u64 {
        self.write_item(item, key, value);
        self.table
    }
}

/// Writes all records of `data`, over any existing ones. `progress` gets the number written and the total, about ten
/// times a second.
///
/// # Errors
/// The first error that another try does not mend, such as [`Error::OutOfMemory`].
pub fn fill(config: &Config, data: &Data, progress: &mut dyn FnMut(u64, u64)) -> Result<FillSummary, Error> {
    match &data.graph {
        Some(graph) => fill_from(config, &GraphRecordSource::new(data, graph), progress),
        None => fill_from(config, data, progress),
    }
}

fn fill_from(
    config: &Config,
    source: &impl RecordSource,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<FillSummary, Error> {
    let begun = Instant::now();
    let mut connection = Connection::connect(config)?;
    let packet_bytes = config.packet_bytes();
    let (again, in_flight, free) = (Vec::new(), Vec::new(), Vec::new());
    let total = source.total();
    let mut filler = TableFiller { source, packet_bytes, next: source.first(), written: 0, again, in_flight, free };
    let mut reported = Instant::now();
    while filler.written < total {
        while filler.in_flight.len() - filler.free.len() < limits::FILL_DEPTH && filler.has_more() {
            filler.send(&mut connection)?;
        }
        if filler.take(&mut connection)? == 0 {
            std::thread::yield_now();
        }
        if reported.elapsed() > Duration::from_millis(100) {
            reported = Instant::now();
            progress(filler.written, total);
        }
    }
    progress(total, total);
    Ok(FillSummary { records: total, took: begun.elapsed() })
}

struct TableFiller<'s, S> {
    source: &'s S,
    packet_bytes: usize,
    next: Option<u64>,
    written: u64,
    /// Items to be written again, and how often each was tried.
    again: Vec<(u64, u32)>,
    /// Items of the message in each slot.
    in_flight: Vec<Vec<(u64, u32)>>,
    free: Vec<usize>,
}

impl<S: RecordSource> TableFiller<'_, S> {
    fn has_more(&self) -> bool {
        self.next.is_some() || !self.again.is_empty()
    }

    /// Sends one message of about one packet.
    fn send(&mut self, connection: &mut Connection) -> Result<(), Error> {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.in_flight.push(Vec::new());
            self.in_flight.len() - 1
        });
        let mut message = connection.message();
        let (mut key, mut value, mut last) = (Vec::new(), Vec::new(), 0);
        while message.operations() == 0 || message.bytes() + last <= self.packet_bytes {
            let item = self.again.pop().or_else(|| {
                let next = self.next?;
                self.next = self.source.after(next);
                Some((next, 0))
            });
            let Some(item) = item else { break };
            let table = self.source.write(item.0, &mut key, &mut value);
            let before = message.bytes();
            message.put(table, &key, &value, &PutOptions::default());
            last = message.bytes() - before;
            if let Some(flight) = self.in_flight.get_mut(slot) {
                flight.push(item);
            }
        }
        connection.send(slot as u64, message)
    }

    fn take(&mut self, connection: &mut Connection) -> Result<usize, Error> {
        let TableFiller { in_flight, free, again, written, .. } = self;
        let (mut failed, mut is_overloaded) = (None, false);
        let ended = connection.poll(|tag, answer| {
            let slot = tag as usize;
            let Some(items) = in_flight.get_mut(slot) else { return };
            let mut answers = answer.as_ref().ok().map(|answer| answer.operations());
            let mut whole = answer.as_ref().err().cloned();
            for (index, tries) in items.drain(..) {
                let error = match answers.as_mut().and_then(Iterator::next) {
                    Some(Ok(answer)) => operation_error(&answer),
                    Some(Err(error)) => Some(error),
                    None => whole.clone().or(Some(Error::Protocol { text: "an operation has no answer".into() })),
                };
                is_overloaded |= error == Some(Error::Overloaded);
                match error {
                    None => *written += 1,
                    // Writing the same record again does no harm, whether the first attempt ran or not.
                    Some(Error::Timeout { .. } | Error::Overloaded | Error::Stale | Error::OverQuota { .. })
                        if tries < limits::FILL_ATTEMPTS =>
                    {
                        again.push((index, tries + 1));
                    }
                    Some(error) => {
                        whole = Some(error.clone());
                        failed = Some(error);
                    }
                }
            }
            free.push(slot);
        });
        if is_overloaded {
            std::thread::sleep(limits::FILL_PAUSE);
        }
        failed.map_or(Ok(ended), Err)
    }
}
