//! Where imported records go: batches of puts, one after the other, with counts of what became of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sandstorm_client::blocking::Client;
use sandstorm_client::control::ExportedRecord;
use sandstorm_client::{Error, PutOptions, Reply};
use sandstorm_net::rpc::MAX_OPERATIONS;
use sandstorm_store::clock_ms;
use serde::Serialize;

use crate::cli::output::{CliError, counted, fields};
use crate::cli::session::CliSession;

/// Bytes of records in a message, about: as much more as the largest record has may follow.
const BATCH_BYTES: usize = 256 << 10;
/// Problems that are listed; the others are counted.
const LISTED_PROBLEMS: usize = 20;
/// Time for which a batch is sent again while the server does not answer, or has no room for requests.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same while a table is full, or the disk of the server's log.
const MEMORY_PATIENCE: Duration = Duration::from_secs(5);
/// Pause before a batch is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A record to be written.
pub(super) struct IncomingRecord {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) flags: u32,
    /// Milliseconds since the Unix epoch; 0: it does not expire.
    pub(super) expires_at_ms: u64,
}

impl IncomingRecord {
    /// The record of a file's line.
    pub(super) fn read(record: &ExportedRecord) -> Result<IncomingRecord, String> {
        let (key, value) = (record.key_bytes()?.into_owned(), record.value_bytes()?.into_owned());
        Ok(IncomingRecord { key, value, flags: record.flags, expires_at_ms: record.expires_at_ms })
    }
}

/// A record that was not taken.
#[derive(Debug, Serialize)]
struct RecordProblem {
    /// Its line, or its key.
    at: String,
    why: String,
}

/// What became of the records.
#[derive(Debug, Default, Serialize)]
pub(super) struct ImportReport {
    written: u64,
    /// There already, and left alone.
    kept: u64,
    /// Not written, since their time was over.
    expired: u64,
    /// Gone from the source while it was read.
    gone: u64,
    /// Not taken.
    rejected: u64,
    problems: Vec<RecordProblem>,
    /// Keys of the source whose types cannot be imported, by type.
    skipped: BTreeMap<String, u64>,
    seconds: f64,
}

impl ImportReport {
    pub(super) fn describe(&self) -> String {
        let mut rows = vec![("written", self.written.to_string())];
        for (name, count) in [
            ("left alone, since they were there", self.kept),
            ("expired", self.expired),
            ("gone meanwhile", self.gone),
            ("not taken", self.rejected),
        ] {
            if count > 0 {
                rows.push((name, count.to_string()));
            }
        }
        let mut text = fields(&rows);
        for RecordProblem { at, why } in &self.problems {
            text.push_str(&format!("{at}: {why}\n"));
        }
        if self.rejected > self.problems.len() as u64 {
            text.push_str(&format!("and {} more\n", self.rejected - self.problems.len() as u64));
        }
        for (kind, count) in &self.skipped {
            let keys = counted(*count, "key");
            text.push_str(&format!("skipped: {keys} of type {kind}, which has no counterpart here\n"));
        }
        text
    }

    /// An error if anything was left out.
    pub(super) fn outcome(&self) -> Result<(), CliError> {
        let skipped: u64 = self.skipped.values().sum();
        if self.rejected + skipped == 0 {
            return Ok(());
        }
        let kinds: Vec<&str> = self.skipped.keys().map(String::as_str).collect();
        let were = |number| if number == 1 { "was" } else { "were" };
        let rejected = format!("{} {} not taken", counted(self.rejected, "record"), were(self.rejected));
        let (keys, types) = (counted(skipped, "key"), if kinds.len() == 1 { "type" } else { "types" });
        let kinds = kinds.join(", ");
        let text = match (self.rejected, skipped) {
            (0, _) => format!("{keys} {} skipped: the {types} {kinds} cannot be imported", were(skipped)),
            (_, 0) => rejected,
            _ => format!("{rejected}, and {keys} of {types} {kinds} skipped"),
        };
        Err(CliError::new(text).hint("all others were imported").code("incomplete"))
    }
}

/// The sink: see the head of this file.
pub(super) struct RecordSink {
    client: Client,
    tenant: String,
    table: u64,
    keep_existing: bool,
    batch: Vec<(IncomingRecord, String)>,
    batch_bytes: usize,
    report: ImportReport,
    begun: Instant,
}

impl RecordSink {
    pub(super) fn new(session: &CliSession, keep_existing: bool) -> Result<RecordSink, CliError> {
        let (client, tenant) = session.data()?;
        let (batch, report, begun) = (Vec::new(), ImportReport::default(), Instant::now());
        Ok(RecordSink { client, tenant: tenant.name, table: 0, keep_existing, batch, batch_bytes: 0, report, begun })
    }

    /// Has the records that follow written to that table.
    pub(super) fn choose_table(&mut self, session: &CliSession, name: &str) -> Result<(), CliError> {
        self.table = session.table_id(&self.tenant, name)?;
        Ok(())
    }

    /// Takes a record; `at` names it, for people.
    ///
    /// # Errors
    /// A batch cannot be written: see [`RecordSink::flush`].
    pub(super) fn push(&mut self, record: IncomingRecord, at: &dyn Fn() -> String) -> Result<(), CliError> {
        let bytes = record.key.len() + record.value.len();
        if self.batch.len() >= MAX_OPERATIONS || self.batch_bytes + bytes > BATCH_BYTES {
            self.flush()?;
        }
        self.batch_bytes += bytes;
        self.batch.push((record, at()));
        Ok(())
    }

    /// Notes a record that is not taken.
    pub(super) fn reject(&mut self, at: String, why: String) {
        self.report.rejected += 1;
        if self.report.problems.len() < LISTED_PROBLEMS {
            self.report.problems.push(RecordProblem { at, why });
        }
    }

    /// Notes a key of a type that cannot be imported.
    pub(super) fn skip(&mut self, kind: &str) {
        *self.report.skipped.entry(kind.to_owned()).or_default() += 1;
    }

    /// Notes a key that was gone when it was read.
    pub(super) fn note_gone(&mut self) {
        self.report.gone += 1;
    }

    /// How far it is, in a few words.
    pub(super) fn counts(&self) -> String {
        let per_s = self.report.written as f64 / self.begun.elapsed().as_secs_f64().max(0.001);
        format!("{} written, {per_s:.0} a second", self.report.written)
    }

    /// Writes what has gathered. What was busy is sent again for a while.
    ///
    /// # Errors
    /// The server takes no records.
    pub(super) fn flush(&mut self) -> Result<(), CliError> {
        let begun = Instant::now();
        self.batch_bytes = 0;
        while !self.batch.is_empty() {
            let now_ms = clock_ms(0);
            let is_over = |record: &IncomingRecord| record.expires_at_ms != 0 && record.expires_at_ms <= now_ms;
            let before = self.batch.len();
            self.batch.retain(|(record, _)| !is_over(record));
            self.report.expired += (before - self.batch.len()) as u64;
            let Some(error) = self.send(now_ms)? else { continue };
            let patience = if matches!(error, Error::OutOfMemory { .. }) { MEMORY_PATIENCE } else { PATIENCE };
            if begun.elapsed() > patience {
                self.batch.clear();
                return Err(error.into());
            }
            std::thread::sleep(RETRY_PAUSE);
        }
        Ok(())
    }

    /// Sends the batch; what is left of it is what has to be sent again, for the error that is returned.
    fn send(&mut self, now_ms: u64) -> Result<Option<Error>, CliError> {
        if self.batch.is_empty() {
            return Ok(None);
        }
        let mut message = self.client.batch();
        for (record, _) in &self.batch {
            let mut options = PutOptions { flags: record.flags, ..PutOptions::default() };
            if record.expires_at_ms != 0 {
                options.ttl = Some(Duration::from_millis(record.expires_at_ms.saturating_sub(now_ms).max(1)));
            }
            if self.keep_existing {
                options = options.if_absent();
            }
            message = message.put_with(self.table, &record.key, &record.value, &options);
        }
        let replies = match self.client.send(message) {
            Ok(replies) => replies,
            // Too large as a whole: it is a single record, since a batch is smaller.
            Err(error @ Error::TooLarge { .. }) if self.batch.len() == 1 => vec![Err(error)],
            Err(error) if is_passing(&error) => return Ok(Some(error)),
            Err(error) => return Err(error.into()),
        };
        let mut again = (Vec::new(), None);
        for ((record, at), reply) in std::mem::take(&mut self.batch).into_iter().zip(replies) {
            match reply {
                Ok(Reply::Written(_)) => self.report.written += 1,
                Ok(other) => return Err(CliError::new(format!("a put was answered with {other:?}"))),
                Err(Error::Conflict) => self.report.kept += 1,
                Err(error @ (Error::TooLarge { .. } | Error::Malformed { .. })) => self.reject(at, error.to_string()),
                Err(error) if is_passing(&error) => {
                    again.0.push((record, at));
                    again.1 = Some(error);
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.batch = again.0;
        Ok(again.1)
    }

    /// Returns what became of the records.
    pub(super) fn finish(mut self) -> ImportReport {
        self.report.seconds = self.begun.elapsed().as_secs_f64();
        self.report
    }
}

/// Returns whether the same request may succeed later.
fn is_passing(error: &Error) -> bool {
    matches!(
        error,
        Error::Timeout { .. }
            | Error::Overloaded
            | Error::OverQuota { .. }
            | Error::OutOfMemory { .. }
            | Error::NotBacked { .. }
            | Error::Stale
            | Error::Busy { .. }
            | Error::ShuttingDown
            | Error::Io { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_told_in_the_singular() {
        let outcome = |rejected, skipped: &[(&str, u64)]| {
            let skipped = skipped.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect();
            let report = ImportReport { rejected, skipped, ..ImportReport::default() };
            report.outcome().map_err(|error| error.message)
        };
        assert_eq!(outcome(0, &[]), Ok(()));
        for (rejected, skipped, text) in [
            (1, &[][..], "1 record was not taken"),
            (2, &[], "2 records were not taken"),
            (0, &[("hash", 1)], "1 key was skipped: the type hash cannot be imported"),
            (0, &[("hash", 1), ("list", 2)], "3 keys were skipped: the types hash, list cannot be imported"),
            (1, &[("set", 1)], "1 record was not taken, and 1 key of type set skipped"),
        ] {
            assert_eq!(outcome(rejected, skipped), Err(text.to_owned()));
        }
    }
}
