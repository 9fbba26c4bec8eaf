//! Fills a table with the records of a load, as fast as the server takes them.

use super::Data;
use super::graph::GraphRecordSource;
use super::record_source::RecordSource;
use super::routes::{self, LoadRoutes};
use crate::message::Message;
use crate::raw::{Response, operation_error};
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
    let mut routes = LoadRoutes::connect(config)?;
    let packet_bytes = config.packet_bytes();
    let total = source.total();
    let mut filler = TableFiller {
        source,
        packet_bytes,
        next: source.first(),
        written: 0,
        again: Vec::new(),
        elsewhere: Vec::new(),
        in_flight: Vec::new(),
        free: Vec::new(),
    };
    let mut reported = Instant::now();
    while filler.written < total {
        while filler.in_flight.len() - filler.free.len() < limits::FILL_DEPTH && filler.has_more() {
            filler.send(&mut routes)?;
        }
        if filler.take(&mut routes)? == 0 {
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
    /// Items whose keys are on another server, with the epoch and the server's words.
    elsewhere: Vec<((u64, u32), u64, String)>,
    /// Items of the message in each slot.
    in_flight: Vec<Vec<(u64, u32)>>,
    free: Vec<usize>,
}

impl<S: RecordSource> TableFiller<'_, S> {
    fn has_more(&self) -> bool {
        self.next.is_some() || !self.again.is_empty()
    }

    /// Sends one message of about one packet; in a cluster one to each server that has some of its keys.
    fn send(&mut self, routes: &mut LoadRoutes) -> Result<(), Error> {
        let mut parts: Vec<(usize, usize, Message)> = Vec::new();
        let (mut key, mut value, mut last, mut longest) = (Vec::new(), Vec::new(), 0, 0);
        while longest == 0 || longest + last <= self.packet_bytes {
            let item = self.again.pop().or_else(|| {
                let next = self.next?;
                self.next = self.source.after(next);
                Some((next, 0))
            });
            let Some(item) = item else { break };
            let table = self.source.write(item.0, &mut key, &mut value);
            let number = if routes.is_cluster() { routes.owner(&key) } else { routes::FIRST };
            let place = parts.iter().position(|(known, ..)| *known == number).unwrap_or_else(|| {
                let slot = self.free.pop().unwrap_or_else(|| {
                    self.in_flight.push(Vec::new());
                    self.in_flight.len() - 1
                });
                parts.push((number, slot, routes.connection(number).message()));
                parts.len() - 1
            });
            let Some((_, slot, message)) = parts.get_mut(place) else { break };
            let before = message.bytes();
            message.put(table, &key, &value, &PutOptions::default());
            (last, longest) = (message.bytes() - before, longest.max(message.bytes()));
            self.in_flight.get_mut(*slot).iter_mut().for_each(|flight| flight.push(item));
        }
        parts.into_iter().try_for_each(|(number, slot, message)| routes.connection(number).send(slot as u64, message))
    }

    fn take(&mut self, routes: &mut LoadRoutes) -> Result<usize, Error> {
        let TableFiller { in_flight, free, again, elsewhere, written, .. } = self;
        let (mut failed, mut is_overloaded) = (None, false);
        let mut each = |tag: u64, answer: Result<Response<'_>, Error>| {
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
                is_overloaded |= matches!(error, Some(Error::Overloaded | Error::NotBacked { .. }));
                match error {
                    None => *written += 1,
                    // Writing the same record again does no harm, whether the first attempt ran or not.
                    Some(
                        Error::Timeout { .. }
                        | Error::Overloaded
                        | Error::Stale
                        | Error::OverQuota { .. }
                        | Error::NotBacked { .. },
                    ) if tries < limits::FILL_ATTEMPTS => {
                        again.push((index, tries + 1));
                    }
                    Some(Error::WrongServer { epoch, text }) if tries < limits::FILL_ATTEMPTS => {
                        elsewhere.push(((index, tries + 1), epoch, text));
                    }
                    Some(error) => {
                        whole = Some(error.clone());
                        failed = Some(error);
                    }
                }
            }
            free.push(slot);
        };
        let ended = routes.all().map(|connection| connection.poll(&mut each)).sum();
        for (item, epoch, text) in std::mem::take(&mut self.elsewhere) {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            self.source.write(item.0, &mut key, &mut value);
            routes.learn(&key, epoch, &text)?;
            self.again.push(item);
        }
        if is_overloaded {
            std::thread::sleep(limits::FILL_PAUSE);
        }
        failed.map_or(Ok(ended), Err)
    }
}
