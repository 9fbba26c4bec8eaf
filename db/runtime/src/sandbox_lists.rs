//! Reads of many records at once by sandboxed code: each list that it names is checked as a whole.
//!
//! Guarantees: as for `sandbox_calls`. A list is granted from its first byte to its last when it is looked at, and no
//! memory is taken back before the call is over: a call grants more of it at most.
#![allow(unsafe_code)]

use sandstorm_api::abi::{self, MAX_CALL_KEYS};
use sandstorm_sandbox::guest_types::{GuestKey, GuestRecord};

use super::guest_value::GuestAddress;
use super::sandbox_calls::{ABSENT_RECORD, CallResult, SandboxCall};

impl SandboxCall<'_> {
    pub(super) fn prefetch_many(
        &mut self,
        table: u64,
        keys: GuestAddress,
        count: u32,
        hashes: GuestAddress,
    ) -> CallResult<()> {
        let (count, table) = (count_of(count)?, self.own_table(table)?);
        self.body.pause.has_asked = true;
        let (keys, hashes) = (self.memory.list::<GuestKey>(keys, count)?, self.memory.list::<u64>(hashes, count)?);
        for index in 0..count {
            // SAFETY: the call takes nothing of the module's memory back.
            let key = unsafe { keys.get(index) };
            let hash = table.hash(self.key(key.first, key.len)?);
            table.prefetch_bucket(hash);
            // SAFETY: as above.
            unsafe { hashes.set(index, hash) };
        }
        Ok(())
    }

    pub(super) fn prefetch_records(&mut self, table: u64, hashes: GuestAddress, count: u32) -> CallResult<()> {
        let (count, table) = (count_of(count)?, self.own_table(table)?);
        self.body.pause.has_asked = true;
        let hashes = self.memory.list::<u64>(hashes, count)?;
        // SAFETY: the invocation's pin is the protection that the buckets need. No memory is taken back meanwhile.
        unsafe { table.prefetch_records_pinned((0..count).map(|index| hashes.get(index))) };
        Ok(())
    }

    pub(super) fn get_many(
        &mut self,
        table: u64,
        keys: GuestAddress,
        hashes: GuestAddress,
        count: u32,
        out: GuestAddress,
    ) -> CallResult<()> {
        let (count, table) = (count_of(count)?, (table, self.own_table(table)?));
        let (keys, hashes) = (self.memory.list::<GuestKey>(keys, count)?, self.memory.list::<u64>(hashes, count)?);
        let out = self.memory.list::<GuestRecord>(out, count)?;
        // SAFETY: the lists have so many. The call takes nothing of the memory back: it grants more of it at most.
        let key_and_hash = |index| unsafe { (keys.get(index), hashes.get(index)) };
        if table.1.is_partial() {
            // Before anything is copied: where a record is on the disk the call is made again.
            for index in 0..count {
                let (key, hash) = key_and_hash(index);
                self.find_in(table, hash, self.key(key.first, key.len)?)?;
            }
            if self.body.shown.has_cold() {
                return Err(self.body.met_cold().into());
            }
        }
        for index in 0..count {
            let (key, hash) = key_and_hash(index);
            let record = match self.find_in(table, hash, self.key(key.first, key.len)?)? {
                Some(record) => {
                    let (key, value) = record.key_and_value();
                    self.memory.prefetch_next_record(key.len() + value.len());
                    self.hand_out(&record)?
                }
                None => ABSENT_RECORD,
            };
            // SAFETY: as above.
            unsafe { out.set(index, record) };
        }
        Ok(())
    }
}

/// The number of keys of a call, if it is not more than one takes.
fn count_of(count: u32) -> Result<usize, u32> {
    if count as usize > MAX_CALL_KEYS { Err(abi::STATUS_INVALID) } else { Ok(count as usize) }
}
