//! A transaction's log as bytes, which go to a called extension and come back with what it has added.
//!
//! Guarantees: bytes are read with every length checked; what they name is copied, and nothing is believed that the
//! host does not check at the commit.

use alloc::vec::Vec;

use super::log::{LoggedKey, LoggedRange, LoggedRead, LoggedValue, RangeContent, TransactionLog};
use crate::Error;
use crate::abi::RawRow;
use crate::invocation_bytes::InvocationBytes;
use crate::record::TableId;

const READ: u8 = 1;
const PUT: u8 = 2;
const DELETED: u8 = 4;

/// Bytes that are written one after the other.
#[derive(Default)]
struct NotesWriter(Vec<u8>);

impl NotesWriter {
    fn number(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

/// What is left of bytes that are read.
struct NotesReader<'b>(&'b [u8]);

impl<'b> NotesReader<'b> {
    fn number(&mut self) -> Result<u64, Error> {
        let (number, rest) = self.0.split_first_chunk().ok_or_else(cut_short)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*number))
    }

    fn bytes(&mut self) -> Result<&'b [u8], Error> {
        let len = usize::try_from(self.number()?).map_err(|_| cut_short())?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or_else(cut_short)?;
        self.0 = rest;
        Ok(bytes)
    }
}

fn cut_short() -> Error {
    Error::new("what another extension says of the transaction is not understood")
}

impl TransactionLog {
    /// Writes the log down. Without `changes`: what was read alone.
    pub(crate) fn encode(&self, changes: bool) -> Vec<u8> {
        let mut out = NotesWriter::default();
        let is_told = |note: &&LoggedKey| note.read.is_some() || (changes && note.written.is_some());
        out.number(self.list.iter().filter(is_told).count() as u64);
        for note in self.list.iter().filter(is_told) {
            let written = note.written.filter(|_| changes);
            let kinds = [
                if note.read.is_some() { READ } else { 0 },
                match written {
                    Some(Some(_)) => PUT,
                    Some(None) => DELETED,
                    None => 0,
                },
            ];
            out.number(u64::from(kinds[0] | kinds[1]));
            out.number(note.table);
            out.number(note.hash);
            out.bytes(self.keeper.bytes(note.key));
            if let Some(read) = &note.read {
                out.number(read.version);
            }
            if let Some(Some(stored)) = written {
                out.number(stored.flags.into());
                out.number(stored.expires_at_ms);
                out.bytes(self.keeper.bytes(stored.value));
            }
        }
        out.number(self.ranges.len() as u64);
        for range in &self.ranges {
            self.encode_range(range, &mut out);
        }
        out.0
    }

    fn encode_range(&self, range: &LoggedRange, out: &mut NotesWriter) {
        out.number(range.table);
        out.bytes(self.keeper.bytes(range.from));
        out.bytes(self.keeper.bytes(range.to));
        let is_count = matches!(range.met, RangeContent::Count(_));
        out.number(u64::from(range.included) | u64::from(range.backward) << 1 | u64::from(is_count) << 2);
        match &range.met {
            RangeContent::Count(count) => out.number(*count as u64),
            RangeContent::Rows(rows) => {
                out.number(rows.len() as u64);
                for row in &self.rows[rows.clone()] {
                    out.number(row.version);
                    out.bytes(self.keeper.bytes(InvocationBytes::of_parts(row.key, row.key_len)));
                }
            }
        }
    }

    /// Adds what another extension's log, that began with this one's, has more.
    pub(crate) fn absorb(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut from = NotesReader(bytes);
        for _ in 0..from.number()? {
            self.absorb_key(&mut from)?;
        }
        let (known, all) = (self.ranges.len() as u64, from.number()?);
        for number in 0..all {
            // It has this log's own ranges first.
            self.absorb_range(&mut from, number >= known)?;
        }
        if from.0.is_empty() { Ok(()) } else { Err(cut_short()) }
    }

    fn absorb_key(&mut self, from: &mut NotesReader<'_>) -> Result<(), Error> {
        let (kinds, table, hash) = (from.number()? as u8, TableId(from.number()?), from.number()?);
        let key = from.bytes()?;
        let index = match self.find(table, hash, key) {
            Some(index) => index,
            None => {
                let key = self.keeper.copy(key);
                self.note(table, hash, key);
                self.list.len() - 1
            }
        };
        if kinds & READ != 0 {
            let version = from.number()?;
            if self.list[index].read.is_none() {
                self.list[index].read = Some(LoggedRead { version, stored: None, is_shown: false });
                self.reads += 1;
                self.read_bytes += key.len();
            }
        }
        if kinds & PUT != 0 {
            let (flags, expires_at_ms) = (from.number()? as u32, from.number()?);
            let value = from.bytes()?;
            self.check_write(table, hash, key, value.len())?;
            let value = self.keeper.copy(value);
            self.write(table, hash, key, Some(LoggedValue { value, flags, expires_at_ms }));
        } else if kinds & DELETED != 0 {
            self.check_write(table, hash, key, 0)?;
            self.write(table, hash, key, None);
        }
        Ok(())
    }

    fn absorb_range(&mut self, from: &mut NotesReader<'_>, is_new: bool) -> Result<(), Error> {
        let (table, first, last, kinds) = (from.number()?, from.bytes()?, from.bytes()?, from.number()?);
        let count = from.number()?;
        let mut rows = Vec::new();
        if kinds & 4 == 0 {
            for _ in 0..count {
                rows.push((from.number()?, from.bytes()?));
            }
        }
        if !is_new {
            return Ok(());
        }
        let bytes = first.len() + last.len() + rows.iter().map(|(_, key)| key.len()).sum::<usize>();
        self.check_range(rows.len(), bytes)?;
        self.row_bytes += bytes;
        let first_row = self.rows.len();
        for (version, key) in &rows {
            let (key, key_len) = self.keeper.copy(key).parts();
            self.rows.push(RawRow { key, key_len, version: *version });
        }
        let met = match kinds & 4 {
            0 => RangeContent::Rows(first_row..self.rows.len()),
            _ => RangeContent::Count(usize::try_from(count).map_err(|_| cut_short())?),
        };
        let (first, last) = (self.keeper.copy(first), self.keeper.copy(last));
        let (included, backward) = (kinds & 1 != 0, kinds & 2 != 0);
        self.ranges.push(LoggedRange { table, from: first, to: last, included, backward, met });
        Ok(())
    }
}
