//! The host's functions as sandboxed code calls them: with addresses of its own memory, each of which is checked.
//!
//! Guarantees: nothing of the module's is believed. Addresses and lengths are bounded before they are used; values are
//! copied out before they are looked at; no slice of the module's memory is used after something was written there.
//! Records are copied into the record window, and charged. Tables are those of the invocation's own tenant and those
//! granted to it at this moment. A trap leaves no lock held and nothing with a destructor alive.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use sandstorm_api::abi;
use sandstorm_extension::KillCause;
use sandstorm_sandbox::guest_types::{GuestCursor, GuestRecord, GuestWrite};
use sandstorm_sandbox::{HostFunction, MEMORY_PIECE_BYTES};
use sandstorm_store::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use sandstorm_store::{Participant, RecordRef, RecordTable, StoreCondition, WriteOptions, expiry_ms};

use super::cold_records::{ScanFrom, scan_table};
use super::guest_memory::GuestMemory;
use super::guest_value::GuestAddress;
use super::host::condition_of;
use super::host_call::store_error_status;
use super::invocation::InvocationState;
use super::sandbox_switch::trap_sandboxed;
use super::worker_block::{CONTINUE_CALL, HostAnswer, WorkerBlock};
use crate::limits::{ERROR_TEXT_BYTES, SCAN_CALL_RECORDS};

/// The end of an invocation that a call asks for: the cause.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestTrap(KillCause);

/// How a call fails: with a status for the module, or with the end of the invocation.
pub(super) enum CallError {
    Status(u32),
    Trap(GuestTrap),
}

impl From<u32> for CallError {
    fn from(status: u32) -> CallError {
        CallError::Status(status)
    }
}

pub(super) type CallResult<T> = Result<T, CallError>;

/// Runs the host's function of this number. Called by the stubs alone, on the worker's stack.
///
/// # Safety
/// `block` is that of the calling thread, which is in `STATE_HOST_CALL` state; it names the invocation under way, which
/// is sandboxed; `parameters` are the seven registers on the module's stack. gs is the base of the module's memory.
pub(super) unsafe extern "C" fn host_function(
    number: u32,
    parameters: *const [u64; 7],
    block: *const WorkerBlock,
) -> HostAnswer {
    // SAFETY: this function's contract; the engine keeps its block.
    let block = unsafe { &*block };
    // SAFETY: this function's contract. The engine holds the invocation alone; the participant outlives the poll.
    let ended = unsafe {
        let body = &mut *block.current.load(Ordering::Relaxed).cast::<InvocationState>();
        // Where others had their turn meanwhile, the module has made its call again.
        if number == CONTINUE_CALL || !body.copies.is_empty() {
            continue_copies(body)
        } else {
            let (participant, parameters) = (&*block.participant.load(Ordering::Relaxed), *parameters);
            match HostFunction::by_number(number as usize) {
                Some(function) => run(function, body, participant, &parameters).map(|value| answer(body, value)),
                None => Err(GuestTrap(KillCause::IllegalInstruction)),
            }
        }
    };
    match ended {
        Ok(answer) => answer,
        // SAFETY: in call state on the worker's own stack; nothing with a destructor is alive.
        Err(GuestTrap(cause)) => unsafe { trap_sandboxed(block, cause) },
    }
}

/// The answer of a call: its result, unless copies are left to be made.
#[inline]
fn answer(body: &mut InvocationState, value: u64) -> HostAnswer {
    if body.copies.is_empty() {
        return HostAnswer { value, more: 0 };
    }
    body.copies.set_result(value);
    HostAnswer { value: 0, more: 1 }
}

/// Makes a piece of the copies that a call has left.
#[cold]
fn continue_copies(body: &mut InvocationState) -> Result<HostAnswer, GuestTrap> {
    let Some(memory) = &body.guest_memory else { return Err(GuestTrap(KillCause::IllegalInstruction)) };
    // SAFETY: the module has not run since its call; the records are kept by the invocation's pin.
    let made = unsafe { body.copies.make_some(memory) };
    Ok(made.map_or(HostAnswer { value: 0, more: 1 }, |value| HostAnswer { value, more: 0 }))
}

fn run(
    function: HostFunction,
    body: &mut InvocationState,
    participant: &Participant,
    parameters: &[u64; 7],
) -> Result<u64, GuestTrap> {
    let Some(memory) = body.guest_memory.as_deref_mut().map(std::ptr::from_mut) else {
        return Err(GuestTrap(KillCause::IllegalInstruction));
    };
    // SAFETY: the memory belongs to the body, which is not moved or changed in that respect during the call; no other
    // reference to it is used meanwhile.
    let memory = unsafe { &mut *memory };
    let mut call = SandboxCall { body, participant, memory, copied: 0 };
    let [first, second, third, fourth, fifth, sixth, seventh] = *parameters;
    // Addresses and lengths are 32 bits long; whatever else the registers hold is cut off.
    let narrow = |value: u64| value as u32;
    let (b, c, d, e, f, g) =
        (narrow(second), narrow(third), narrow(fourth), narrow(fifth), narrow(sixth), narrow(seventh));
    let a = narrow(first);
    let result = match function {
        HostFunction::Prefetch => call.prefetch(first, b, c, d),
        HostFunction::PrefetchRecord => call.prefetch_record(first, second),
        HostFunction::Get => call.get(first, second, c, d, e),
        HostFunction::Put => call.put(first, (b, c), (d, e), f, g),
        HostFunction::Delete => call.delete(first, b, c, d),
        HostFunction::Increment => call.increment(first, b, c, fourth as i64, e),
        HostFunction::Scan => call.scan(first, b, c, d, e),
        HostFunction::TableByName => call.table_by_name(a, b, c),
        HostFunction::Reply => call.reply(a, b),
        HostFunction::Fail => call.fail(a, b, c),
        HostFunction::Abort => return Err(call.abort(a, b, c)),
        HostFunction::Grow => call.grow(a),
        HostFunction::PrefetchMany => call.prefetch_many(first, b, c, d),
        HostFunction::PrefetchRecords => call.prefetch_records(first, b, c),
        HostFunction::GetMany => call.get_many(first, b, c, d, e),
        HostFunction::Commit => return Ok(u64::from(call.commit((a, b), (c, d), (e, f)))),
        HostFunction::Range => call.range(first, b, c, d, e),
        HostFunction::RangeKeys => call.range_keys(first, b, c),
        HostFunction::ArgsLen => return Ok(u64::from(call.body.abi.args_len as u32)),
        HostFunction::ArgsCopy => call.args_copy(a),
        HostFunction::NowMs => return Ok(call.body.abi.now_ms),
        HostFunction::MemoryCopy if c <= MEMORY_PIECE_BYTES => {
            call.own_memory(call.memory.copy_within(a, b, c), a.max(b))
        }
        HostFunction::MemoryFill if c <= MEMORY_PIECE_BYTES => call.own_memory(call.memory.fill(a, b as u8, c), a),
        HostFunction::MemoryCopy | HostFunction::MemoryFill => return Err(GuestTrap(KillCause::MemoryFault)),
        HostFunction::MemorySize => return Ok(u64::from(call.body.module_pages())),
        HostFunction::GetCopy => call.get_copy(first, (b, c), (d, e), f),
        HostFunction::Count => call.count(first, b, c),
        HostFunction::Nth => call.nth(first, second, c),
        HostFunction::Expiry => call.expiry(first, second, (c, d), e),
        HostFunction::Touch => call.touch(first, (b, c), fourth),
        HostFunction::Random => call.random(a, b),
        HostFunction::NowUs => return Ok(super::clock::clock_us()),
        HostFunction::Secret => call.secret((a, b), (c, d), e),
        HostFunction::LogLine => call.log_line(a, b, c),
        HostFunction::CallBegin => call.call_begin((a, b), (c, d), (e, f)),
        HostFunction::CallEnd => call.call_end(a),
        HostFunction::CallPart => call.call_part(a, (b, c), d),
        HostFunction::CallReturn => call.call_return(a, b),
        HostFunction::MemoryGrow => return Ok(u64::from(call.body.grow_module_memory(call.memory, a))),
    };
    match result {
        Ok(()) => Ok(u64::from(abi::STATUS_OK)),
        Err(CallError::Status(status)) => Ok(u64::from(status)),
        Err(CallError::Trap(end)) => Err(end),
    }
}

/// A call under way.
pub(super) struct SandboxCall<'a> {
    pub(super) body: &'a mut InvocationState,
    pub(super) participant: &'a Participant,
    pub(super) memory: &'a mut GuestMemory,
    /// Bytes of records that the call has copied.
    copied: usize,
}

impl SandboxCall<'_> {
    /// The bytes that the module names, if they are not more than the limit. Used before the host writes to its memory.
    pub(super) fn bytes<'b>(&self, first: GuestAddress, len: u32, limit: usize) -> Result<&'b [u8], u32> {
        if len as usize > limit {
            return Err(abi::STATUS_TOO_LARGE);
        }
        if first == 0 && len != 0 {
            return Err(abi::STATUS_INVALID);
        }
        // SAFETY: no code of the module runs during the call; callers use the slice before they write results.
        unsafe { self.memory.bytes(first, len) }
    }

    pub(super) fn key<'b>(&self, first: GuestAddress, len: u32) -> Result<&'b [u8], u32> {
        self.bytes(first, len, MAX_KEY_BYTES)
    }

    /// What is wrong with an access that a module's own instruction makes ends it.
    fn own_memory(&self, done: Result<(), u32>, address: GuestAddress) -> CallResult<()> {
        let is_overflow = self.memory.is_stack_overflow(self.memory.base() + address as usize);
        let cause = if is_overflow { KillCause::StackOverflow } else { KillCause::MemoryFault };
        done.map_err(|_| CallError::Trap(GuestTrap(cause)))
    }

    fn prefetch(&mut self, table: u64, key: GuestAddress, len: u32, hash: GuestAddress) -> CallResult<()> {
        let key = self.key(key, len)?;
        let found = self.body.table(table)?;
        let of_key = found.hash(key);
        found.prefetch_bucket(of_key);
        (self.body.asked, self.body.pause.has_asked) = ((table, of_key), true);
        Ok(self.memory.write(hash, of_key)?)
    }

    fn prefetch_record(&mut self, table: u64, hash: u64) -> CallResult<()> {
        // SAFETY: the invocation's pin is the protection that the bucket needs.
        unsafe { self.body.table(table)?.prefetch_chained_pinned(hash) };
        Ok(())
    }

    fn get(&mut self, table: u64, hash: u64, key: GuestAddress, len: u32, out: GuestAddress) -> CallResult<()> {
        let key = self.key(key, len)?;
        match self.find(table, hash, key)? {
            Some(record) => {
                let record = self.hand_out(&record)?;
                Ok(self.memory.write(out, record)?)
            }
            None => Err(CallError::Status(self.body.absent_status())),
        }
    }

    /// Copies the value under a key to where the module wants it, if it fits there.
    fn get_copy(
        &mut self,
        table: u64,
        (key, key_len): (GuestAddress, u32),
        (to, capacity): (GuestAddress, u32),
        len: GuestAddress,
    ) -> CallResult<()> {
        let key = self.key(key, key_len)?;
        let Some(record) = self.find(table, 0, key)? else { return Err(self.body.absent_status().into()) };
        let (_, value) = record.key_and_value();
        self.write_wanted(len, value.len() as u32)?;
        match value.len() {
            0 => Ok(()),
            found if found > capacity as usize => Err(abi::STATUS_TOO_LARGE.into()),
            found if found <= MEMORY_PIECE_BYTES as usize => Ok(self.memory.write_bytes(to, value)?),
            found => {
                self.memory.is_granted(to, found as u32)?;
                self.body.copies.push(to, value);
                Ok(())
            }
        }
    }

    /// Writes a result that the module may leave out by naming address 0.
    pub(super) fn write_wanted<T: super::guest_value::GuestValue>(
        &self,
        address: GuestAddress,
        value: T,
    ) -> Result<(), u32> {
        if address == 0 { Ok(()) } else { self.memory.write(address, value) }
    }

    /// The record under a key. `hash` is the module's, which names another bucket at worst.
    fn find<'b>(&mut self, table: u64, hash: u64, key: &[u8]) -> Result<Option<RecordRef<'b>>, u32> {
        let found = self.own_table(table)?;
        self.find_in((table, found), hash, key)
    }

    /// The record under a key of a table of the invocation's, which has that id.
    #[inline]
    pub(super) fn find_in<'b>(
        &mut self,
        (id, table): (u64, &RecordTable),
        hash: u64,
        key: &[u8],
    ) -> Result<Option<RecordRef<'b>>, u32> {
        let hash = if hash == 0 { table.hash(key) } else { hash };
        if !table.owns(key) {
            return Err(abi::STATUS_WRONG_SERVER);
        }
        // SAFETY: the record stays until the invocation's pin ends, which outlasts the call, for which the answer is
        // used.
        let found = unsafe { table.get_pinned(hash, key, self.body.abi.now_ms, &self.body.shown) };
        if let Some(record) = &found {
            self.body.note_read(record.value().len());
            if table.is_watched() {
                self.body.note_watched(id, hash, key);
            }
        }
        Ok(found)
    }

    /// Copies a record into the window.
    #[inline]
    pub(super) fn hand_out(&mut self, record: &RecordRef<'_>) -> CallResult<GuestRecord> {
        let (key, value) = record.key_and_value();
        self.memory.align_records();
        let bytes = key.len() + value.len();
        if !self.memory.has_record_bytes(bytes) {
            self.grow_records(bytes)?;
        }
        let both_at = record.key_with_value().map(|both| self.copy_out(both));
        let (key_at, value_at) = match both_at {
            Some(at) => (at, at + key.len() as u32),
            None => (self.copy_out(key), self.copy_out(value)),
        };
        Ok(GuestRecord {
            value: value_at,
            value_len: value.len() as u32,
            key: key_at,
            key_len: key.len() as u32,
            version: record.version(),
            flags: record.flags(),
            reserved: 0,
        })
    }

    /// Copies bytes that the invocation's pin keeps into the window, where there is room for them.
    #[inline]
    fn copy_out(&mut self, bytes: &[u8]) -> GuestAddress {
        self.copied += bytes.len();
        if self.copied <= MEMORY_PIECE_BYTES as usize {
            return self.memory.copy_to_records(bytes);
        }
        // Others have their turn before so much is copied.
        let at = self.memory.take_records(bytes.len());
        self.body.copies.push(at, bytes);
        at
    }

    /// Grows the record window; an invocation whose tenant has no memory for that ends.
    #[cold]
    pub(super) fn grow_records(&mut self, bytes: usize) -> CallResult<()> {
        const TEXT: &str = "no memory for copies of the records that it has read";
        let grown = self
            .memory
            .record_growth(bytes)
            .is_some_and(|more| self.body.charge(more) && self.memory.grow_records(more).is_ok());
        if grown {
            return Ok(());
        }
        self.body.set_text(TEXT.as_bytes());
        self.body.append_quota_name();
        Err(CallError::Trap(GuestTrap(KillCause::OutOfMemory)))
    }

    fn put(
        &mut self,
        table: u64,
        (key, key_len): (GuestAddress, u32),
        (value, value_len): (GuestAddress, u32),
        how: GuestAddress,
        version: GuestAddress,
    ) -> CallResult<()> {
        let (key, value) = (self.key(key, key_len)?, self.bytes(value, value_len, MAX_VALUE_BYTES)?);
        let now_ms = self.body.abi.now_ms;
        let options = match how {
            0 => WriteOptions::default(),
            how => {
                let how: GuestWrite = self.memory.read(how)?;
                WriteOptions {
                    condition: condition_of(how.condition, how.version)?,
                    flags: how.flags,
                    expires_at_ms: if how.ttl_ms == 0 { 0 } else { expiry_ms(now_ms, how.ttl_ms) },
                }
            }
        };
        let participant = self.participant;
        let table = self.body.table_to_write(table)?;
        let written = table.put(participant, table.hash(key), key, value, &options, now_ms);
        Ok(self.write_wanted(version, written.map_err(store_error_status)?)?)
    }

    fn delete(&mut self, table: u64, key: GuestAddress, len: u32, how: GuestAddress) -> CallResult<()> {
        let key = self.key(key, len)?;
        let condition = match how {
            0 => StoreCondition::Always,
            how => {
                let how: GuestWrite = self.memory.read(how)?;
                condition_of(how.condition, how.version)?
            }
        };
        let (now_ms, participant) = (self.body.abi.now_ms, self.participant);
        let table = self.body.table_to_write(table)?;
        match table.delete(participant, table.hash(key), key, condition, now_ms).map_err(store_error_status)? {
            true => Ok(()),
            false => Err(CallError::Status(abi::STATUS_NOT_FOUND)),
        }
    }

    fn increment(&mut self, table: u64, key: GuestAddress, len: u32, by: i64, sum: GuestAddress) -> CallResult<()> {
        let key = self.key(key, len)?;
        let (now_ms, participant) = (self.body.abi.now_ms, self.participant);
        let table = self.body.table_to_write(table)?;
        let sums = table.increment(participant, table.hash(key), key, by, now_ms);
        let sums = sums.map_err(|error| self.body.write_status(error))?;
        Ok(self.write_wanted(sum, sums.0)?)
    }

    fn scan(
        &mut self,
        table: u64,
        cursor: GuestAddress,
        out: GuestAddress,
        limit: u32,
        filled: GuestAddress,
    ) -> CallResult<()> {
        let mut at: GuestCursor = self.memory.read(cursor)?;
        self.body.pause.has_asked = true;
        let limit = (limit as usize).min(SCAN_CALL_RECORDS);
        let (now_ms, cold_status, participant) = (self.body.abi.now_ms, self.body.cold_status(), self.participant);
        let mut count = 0;
        let mut failed = Ok(());
        let table = self.own_table(table)?;
        if limit > 0 && at.finished != abi::CURSOR_FINISHED {
            let from = ScanFrom { position: at.position, finished: at.finished, limit, now_ms, cold_status };
            let mut add = |record: RecordRef<'_>| {
                if count < limit && failed.is_ok() {
                    failed = self.put_record(out, count, Some(&record));
                    count += 1;
                }
            };
            let guard = participant.guard();
            let scanned = scan_table((table, &guard), participant, from, &mut add);
            match scanned.inspect_err(|status| self.body.note_if(*status == cold_status))? {
                Some(next) => at.position = next,
                None => at.finished = abi::CURSOR_FINISHED,
            }
        }
        failed?;
        self.memory.write(cursor, at)?;
        Ok(self.memory.write(filled, count as u32)?)
    }

    /// A table of the invocation's, beside further uses of it.
    pub(super) fn own_table<'b>(&mut self, table: u64) -> Result<&'b RecordTable, u32> {
        let table: *const RecordTable = self.body.table(table)?;
        // SAFETY: the invocation's view keeps its tables, and a grant's view the granted ones, until the call is over.
        Ok(unsafe { &*table })
    }

    /// Writes a record, or that there is none, as one of a list.
    pub(super) fn put_record(
        &mut self,
        out: GuestAddress,
        index: usize,
        record: Option<&RecordRef<'_>>,
    ) -> CallResult<()> {
        let record = match record {
            Some(record) => self.hand_out(record)?,
            None => ABSENT_RECORD,
        };
        let at = out.checked_add((index * size_of::<GuestRecord>()) as u32).ok_or(abi::STATUS_INVALID)?;
        Ok(self.memory.write(at, record)?)
    }

    fn table_by_name(&mut self, name: GuestAddress, len: u32, table: GuestAddress) -> CallResult<()> {
        let name = std::str::from_utf8(self.key(name, len)?).map_err(|_| abi::STATUS_NOT_FOUND)?;
        let refs = self.body.refs.as_ref().ok_or(abi::STATUS_INVALID)?;
        let id = refs.view.id_of(name).ok_or(abi::STATUS_NOT_FOUND)?;
        Ok(self.memory.write(table, id)?)
    }

    fn reply(&mut self, first: GuestAddress, len: u32) -> CallResult<()> {
        const TEXT: &str = "no memory for a longer reply";
        let room = self.body.reply_limit.saturating_sub(self.body.reply.len());
        let bytes = self.bytes(first, len, room)?;
        if !self.body.grow_reply(bytes.len()) {
            self.body.set_text(TEXT.as_bytes());
            self.body.append_quota_name();
            return Err(CallError::Trap(GuestTrap(KillCause::OutOfMemory)));
        }
        self.body.reply.extend_from_slice(bytes);
        Ok(())
    }

    fn text<'b>(&self, first: GuestAddress, len: u32) -> Result<&'b [u8], u32> {
        const READ: usize = ERROR_TEXT_BYTES + 1;
        self.bytes(first, len.min(READ as u32), READ)
    }

    fn fail(&mut self, code: u32, text: GuestAddress, len: u32) -> CallResult<()> {
        let text = self.text(text, len)?;
        self.body.reply.clear();
        self.body.code = code;
        self.body.set_text(text);
        Ok(())
    }

    fn abort(&mut self, cause: u32, text: GuestAddress, len: u32) -> GuestTrap {
        if let Ok(text) = self.text(text, len) {
            self.body.set_text(text);
        }
        let cause = if cause == abi::ABORT_OUT_OF_MEMORY { KillCause::OutOfMemory } else { KillCause::Panic };
        if cause == KillCause::OutOfMemory {
            self.body.append_quota_name();
        }
        GuestTrap(cause)
    }

    fn grow(&mut self, bytes: u32) -> CallResult<()> {
        if self.body.grow_guest_arena(self.memory, bytes) { Ok(()) } else { Err(abi::STATUS_OUT_OF_MEMORY.into()) }
    }

    pub(super) fn write_at<T: super::guest_value::GuestValue>(
        &self,
        list: GuestAddress,
        index: usize,
        value: T,
    ) -> Result<(), u32> {
        let at = list.checked_add((index * size_of::<T>()) as u32).ok_or(abi::STATUS_INVALID)?;
        self.memory.write(at, value)
    }

    fn commit(&mut self, reads: (u32, u32), ranges: (u32, u32), changes: (u32, u32)) -> u32 {
        super::sandbox_commit::commit(self.body, self.participant, self.memory, reads, ranges, changes)
    }

    fn args_copy(&mut self, to: GuestAddress) -> CallResult<()> {
        let (from, len) = (self.body.guest.args, self.body.abi.args_len as u32);
        if len <= MEMORY_PIECE_BYTES {
            let done = self.memory.copy_within(to, from, len);
            return self.own_memory(done, to);
        }
        let is_granted = self.memory.is_granted(to, len);
        self.own_memory(is_granted, to)?;
        let args = self.bytes(from, len, len as usize)?;
        self.body.copies.push(to, args);
        Ok(())
    }
}

/// What stands in a list for a record that is not there.
pub(super) const ABSENT_RECORD: GuestRecord =
    GuestRecord { value: 0, value_len: 0, key: 1, key_len: 0, version: 0, flags: 0, reserved: 0 };
