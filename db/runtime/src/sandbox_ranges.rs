//! Ranges of ordered tables as sandboxed code asks for them.
//!
//! Guarantees: as `sandbox_calls`; ends of ranges are copied before anything is written to the module's memory.
#![allow(unsafe_code)]

use sandstorm_api::abi::{self, MAX_CALL_RECORDS};
use sandstorm_sandbox::guest_types::{GuestKeys, GuestRange};
use sandstorm_store::limits::MAX_KEY_BYTES;
use sandstorm_store::{KeyRange, RangeProgress, RecordRef, ScanBudget, ShownPosition};

use super::guest_value::GuestAddress;
use super::sandbox_calls::{CallResult, SandboxCall};

/// Bytes that an end of a range may have: the key that comes after the longest one is longer by a byte.
const MAX_BOUND_BYTES: usize = MAX_KEY_BYTES + 1;

impl SandboxCall<'_> {
    /// The rest of a range as a span of keys.
    fn span<'b>(&self, asked: &GuestRange) -> Result<KeyRange<'b>, u32> {
        let (from, to) = (
            self.bytes(asked.from, asked.from_len, MAX_BOUND_BYTES)?,
            self.bytes(asked.to, asked.to_len, MAX_BOUND_BYTES)?,
        );
        Ok(KeyRange { past: asked.past != 0, ..KeyRange::new(from, to, asked.backward != 0) })
    }

    pub(super) fn range(
        &mut self,
        table: u64,
        range: GuestAddress,
        out: GuestAddress,
        limit: u32,
        filled: GuestAddress,
    ) -> CallResult<()> {
        self.memory.write(filled, 0_u32)?;
        self.body.pause.has_asked = true;
        let (now_ms, table) = (self.body.abi.now_ms, self.own_table(table)?);
        let asked: GuestRange = self.memory.read(range)?;
        // What is written below may lie where the ends do.
        let ends = self.span(&asked)?;
        let (from, to) = (ends.from.to_vec(), ends.to.map(<[u8]>::to_vec));
        let mut span = KeyRange { from: &from, to: to.as_deref(), ..ends };
        let limit = if asked.finished == 0 { (limit as usize).min(MAX_CALL_RECORDS) } else { 0 };
        let mut failed = Ok(());
        let mut count = 0;
        let mut add = |record: RecordRef<'_>| {
            if failed.is_ok() {
                self.body.note_read(record.value().len());
                failed = self.put_record(out, count, Some(&record));
                count += 1;
            }
        };
        let (shown, mut budget) = (ShownPosition::default(), ScanBudget::CALL);
        // SAFETY: the records stay until the invocation's pin ends.
        let progress = unsafe { table.range_pinned(&mut span, limit, now_ms, &mut budget, &shown, &mut add) };
        self.body.take_shown(&shown);
        failed?;
        let progress = progress.map_err(|_| abi::STATUS_NOT_ORDERED)?;
        // Before the empty key there is nothing, and as an end it would stand for none.
        let at_start = span.backward && span.to.is_some_and(<[u8]>::is_empty);
        let finished = asked.finished != 0 || progress == RangeProgress::Finished || at_start;
        let (past, moved) = (u32::from(span.past), (span.from, span.to.unwrap_or_default()));
        let (from_at, from_len) = self.bound(&from, moved.0, asked.from, asked.from_len)?;
        let (to_at, to_len) = self.bound(to.as_deref().unwrap_or_default(), moved.1, asked.to, asked.to_len)?;
        let finished = u32::from(finished);
        let left = GuestRange { from: from_at, from_len, to: to_at, to_len, past, finished, ..asked };
        self.memory.write(range, left)?;
        Ok(self.memory.write(filled, count as u32)?)
    }

    /// Where an end of a range lies: where it was, or in the record window if it has moved.
    fn bound(&mut self, was: &[u8], is: &[u8], at: GuestAddress, len: u32) -> CallResult<(GuestAddress, u32)> {
        if std::ptr::eq(was, is) {
            return Ok((at, len));
        }
        if !self.memory.has_record_bytes(is.len()) {
            self.grow_records(is.len())?;
        }
        Ok((self.memory.copy_to_records(is), is.len() as u32))
    }

    pub(super) fn range_keys(&mut self, table: u64, range: GuestAddress, out: GuestAddress) -> CallResult<()> {
        let (room, asked): (GuestKeys, GuestRange) = (self.memory.read(out)?, self.memory.read(range)?);
        self.body.pause.has_asked = true;
        let table = self.own_table(table)?;
        let span = self.span(&asked)?;
        let (from, to) = (span.from.to_vec(), span.to.map(<[u8]>::to_vec));
        let span = KeyRange { from: &from, to: to.as_deref(), ..span };
        let limit = if asked.finished == 0 { (room.ends_len as usize).min(MAX_CALL_RECORDS) } else { 0 };
        let (mut count, mut used, mut failed) = (0_usize, 0_u32, Ok(()));
        let mut add = |key: &[u8]| {
            let fits = failed.is_ok() && key.len() <= (room.bytes_len - used) as usize;
            if fits {
                let end = used + key.len() as u32;
                let at = room.bytes.checked_add(used).ok_or(abi::STATUS_INVALID);
                failed = at
                    .and_then(|at| self.memory.write_bytes(at, key))
                    .and_then(|()| self.write_at(room.ends, count, end));
                (used, count) = (end, count + 1);
            }
            fits
        };
        let shown = ShownPosition::default();
        let progress = table.range_keys(&span, limit, &shown, &mut add).map_err(|_| abi::STATUS_NOT_ORDERED)?;
        self.body.take_shown(&shown);
        failed?;
        self.memory.write(out, GuestKeys { filled: count as u32, ..room })?;
        let finished = u32::from(asked.finished != 0 || progress == RangeProgress::Finished);
        Ok(self.memory.write(range, GuestRange { finished, ..asked })?)
    }
    pub(super) fn count(&mut self, table: u64, range: GuestAddress, count: GuestAddress) -> CallResult<()> {
        let asked: GuestRange = self.memory.read(range)?;
        let (table, span) = (self.own_table(table)?, self.span(&asked)?);
        let found = table.count_keys(&span).map_err(|_| abi::STATUS_NOT_ORDERED)?;
        table.note_all_read(&self.body.shown);
        Ok(self.memory.write(count, found)?)
    }

    pub(super) fn nth(&mut self, table: u64, position: u64, out: GuestAddress) -> CallResult<()> {
        let room: GuestKeys = self.memory.read(out)?;
        let table = self.own_table(table)?;
        let key = table.key_at(position).map_err(|_| abi::STATUS_NOT_ORDERED)?;
        table.note_all_read(&self.body.shown);
        let key = key.ok_or(abi::STATUS_NOT_FOUND)?;
        let fits = key.len() <= room.bytes_len as usize && room.ends_len > 0;
        if fits {
            self.memory.write_bytes(room.bytes, &key)?;
            self.memory.write(room.ends, key.len() as u32)?;
        }
        Ok(self.memory.write(out, GuestKeys { filled: u32::from(fits), ..room })?)
    }
}
