//! The host's functions behind safe ones: the only place where an extension's code crosses into the server.
//!
//! Guarantees: a [`HostHandle`] is only made by [`HostHandle::new`], whose caller promises a live invocation for `'a`.
//! Every pointer handed to the host comes from a slice that outlives the call. Every slice that comes back is tied to
//! `'a`, for which the host keeps the record's memory (the invocation pins its epoch).
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::task::Poll;

use crate::Error;
use crate::abi::{
    CALL_INHERITED, HostCalls, InvocationHeader, MAX_CALL_KEYS, MAX_CALL_RECORDS, MAX_RANDOM_BYTES, MAX_SECRET_BYTES,
    RawCursor, RawKey, RawKeys, RawRange, RawRecord, RawWrite, STATUS_COLD, STATUS_NOT_FOUND, STATUS_OK,
    STATUS_TOO_LARGE,
};
use crate::imports::host_calls;
use crate::invocation_bytes::InvocationBytes;
use crate::keys::{Direction, Keys};
use crate::limits::KEY_BUFFER_BYTES;
use crate::record::Record;
use crate::transaction::log::TransactionLog;

/// One invocation's handle to the server.
#[derive(Clone, Copy)]
pub(crate) struct HostHandle<'a> {
    invocation: *mut InvocationHeader,
    life: PhantomData<&'a ()>,
}

/// Waits for a record on the disk: the server polls again once it is in memory.
fn unless_cold<T>(status: u32, done: impl FnOnce(u32) -> Result<T, Error>) -> Poll<Result<T, Error>> {
    if status == STATUS_COLD { Poll::Pending } else { Poll::Ready(done(status)) }
}

fn status_to_result(status: u32) -> Result<(), Error> {
    if status == STATUS_OK { Ok(()) } else { Err(Error::from_status(status)) }
}

impl<'a> HostHandle<'a> {
    /// # Safety
    /// `invocation` and the host functions behind it stay valid for `'a`, and only this thread uses them during that.
    pub(crate) unsafe fn new(invocation: *mut InvocationHeader) -> HostHandle<'a> {
        HostHandle { invocation, life: PhantomData }
    }

    // Not a leaf, so the compiler would not offer it to other crates by itself.
    #[inline]
    fn calls(&self) -> &'a HostCalls {
        // SAFETY: `new`'s caller promised a live invocation for 'a.
        unsafe { host_calls(self.invocation) }
    }

    pub(crate) fn interleave(&self) -> bool {
        // SAFETY: a live invocation (see `new`); a plain read of a field that only the host writes, between polls.
        unsafe { (*self.invocation).interleave != 0 }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        // SAFETY: as in `interleave`.
        unsafe { (*self.invocation).now_ms }
    }

    pub(crate) fn prefetch(&self, table: u64, key: &[u8]) -> Result<u64, Error> {
        let mut hash = 0;
        // SAFETY: a live invocation; the key outlives the call; `hash` is a local.
        status_to_result(unsafe {
            (self.calls().prefetch)(self.invocation, table, key.as_ptr(), key.len(), &mut hash)
        })?;
        Ok(hash)
    }

    /// Prefetches the buckets of the keys, of [`MAX_CALL_KEYS`] at most, and writes their hashes.
    pub(crate) fn prefetch_many<K: AsRef<[u8]>>(
        &self,
        table: u64,
        keys: &[K],
        hashes: &mut [u64],
    ) -> Result<(), Error> {
        let count = keys.len().min(hashes.len()).min(MAX_CALL_KEYS);
        let keys = raw_keys(keys);
        // SAFETY: a live invocation; keys and hashes outlive the call, and there are `count` of each.
        status_to_result(unsafe {
            (self.calls().prefetch_many)(self.invocation, table, keys.as_ptr().cast(), count, hashes.as_mut_ptr())
        })
    }

    /// Prefetches the records that the buckets name, for up to [`MAX_CALL_KEYS`] hashes.
    pub(crate) fn prefetch_records(&self, table: u64, hashes: &[u64]) {
        // SAFETY: a live invocation; the hashes outlive the call. A failure only means that nothing was prefetched.
        unsafe {
            (self.calls().prefetch_records)(self.invocation, table, hashes.as_ptr(), hashes.len().min(MAX_CALL_KEYS))
        };
    }

    /// Reads the records of the keys, [`MAX_CALL_KEYS`] at most, which have these hashes.
    pub(crate) fn get_many<K: AsRef<[u8]>>(
        &self,
        table: u64,
        keys: &[K],
        hashes: &[u64],
        mut each: impl FnMut(Option<Record<'a>>),
    ) -> Poll<Result<(), Error>> {
        let count = keys.len().min(hashes.len()).min(MAX_CALL_KEYS);
        let (keys, mut records) = (raw_keys(keys), [const { MaybeUninit::<RawRecord>::uninit() }; MAX_CALL_KEYS]);
        let (keys, first) = (keys.as_ptr().cast(), records.as_mut_ptr().cast());
        // SAFETY: a live invocation; keys, hashes and records outlive the call, and there are `count` of each.
        let status = unsafe { (self.calls().get_many)(self.invocation, table, keys, hashes.as_ptr(), count, first) };
        unless_cold(status, |status| {
            status_to_result(status)?;
            for raw in records.iter().take(count) {
                // SAFETY: the host has written one for each key, since it refused none.
                let raw = unsafe { raw.assume_init_read() };
                each((!raw.value.is_null()).then(|| self.record(raw)));
            }
            Ok(())
        })
    }

    pub(crate) fn get(&self, table: u64, hash: u64, key: &[u8]) -> Poll<Result<Option<Record<'a>>, Error>> {
        let mut raw = RawRecord::EMPTY;
        // SAFETY: a live invocation; the key outlives the call; `raw` is a local.
        let status = unsafe { (self.calls().get)(self.invocation, table, hash, key.as_ptr(), key.len(), &mut raw) };
        unless_cold(status, |status| match status {
            STATUS_OK => Ok(Some(self.record(raw))),
            STATUS_NOT_FOUND => Ok(None),
            status => Err(Error::from_status(status)),
        })
    }

    pub(crate) fn put(&self, table: u64, key: &[u8], value: &[u8], how: &RawWrite) -> Result<u64, Error> {
        let mut version = 0;
        // SAFETY: a live invocation; key, value, `how` and `version` outlive the call.
        status_to_result(unsafe {
            (self.calls().put)(
                self.invocation,
                table,
                key.as_ptr(),
                key.len(),
                value.as_ptr(),
                value.len(),
                how,
                &mut version,
            )
        })?;
        Ok(version)
    }

    pub(crate) fn delete(&self, table: u64, key: &[u8], how: &RawWrite) -> Result<bool, Error> {
        // SAFETY: a live invocation; key and `how` outlive the call.
        match unsafe { (self.calls().delete)(self.invocation, table, key.as_ptr(), key.len(), how) } {
            STATUS_OK => Ok(true),
            STATUS_NOT_FOUND => Ok(false),
            status => Err(Error::from_status(status)),
        }
    }

    pub(crate) fn increment(&self, table: u64, key: &[u8], delta: i64) -> Poll<Result<i64, Error>> {
        let mut sum = 0;
        // SAFETY: a live invocation; the key outlives the call; `sum` is a local.
        let status =
            unsafe { (self.calls().increment)(self.invocation, table, key.as_ptr(), key.len(), delta, &mut sum) };
        unless_cold(status, |status| status_to_result(status).map(|()| sum))
    }

    /// Fills `out` with records from the cursor on; answers how many. Pending only if the cursor says that it waits.
    pub(crate) fn scan(&self, table: u64, cursor: &mut RawCursor, out: &mut [RawRecord]) -> Poll<Result<usize, Error>> {
        let mut filled = 0;
        // SAFETY: a live invocation; cursor, `out` (with its length) and `filled` outlive the call.
        let status =
            unsafe { (self.calls().scan)(self.invocation, table, cursor, out.as_mut_ptr(), out.len(), &mut filled) };
        unless_cold(status, |status| status_to_result(status).map(|()| filled.min(out.len())))
    }

    /// Appends the next records of a range, `limit` at most; the range is then what is left.
    pub(crate) fn range(
        &self,
        table: u64,
        left: &mut RangeRemainder<'_>,
        limit: usize,
        records: &mut Vec<Record<'a>>,
    ) -> Result<(), Error> {
        let (mut batch, mut filled) = ([const { MaybeUninit::<RawRecord>::uninit() }; MAX_CALL_RECORDS], 0);
        let (first, limit) = (batch.as_mut_ptr().cast(), limit.min(MAX_CALL_RECORDS));
        // SAFETY: a live invocation; both ends of the range, the batch, which has room for `limit`, and `filled`
        // outlive the call.
        status_to_result(unsafe {
            (self.calls().range)(self.invocation, table, &mut left.raw, first, limit, &mut filled)
        })?;
        // SAFETY: the host has written the first `filled`.
        records.extend(batch.iter().take(filled).map(|raw| self.record(unsafe { raw.assume_init_read() })));
        Ok(())
    }

    /// Appends the next keys of a range, `limit` at most, for which there is room in so many bytes. If none is
    /// appended, though the range is not finished, there is not enough room.
    pub(crate) fn range_keys(
        &self,
        table: u64,
        left: &mut RangeRemainder<'_>,
        limit: usize,
        room: usize,
        keys: &mut Keys,
    ) -> Result<(), Error> {
        let mut ends = [const { MaybeUninit::<usize>::uninit() }; MAX_CALL_RECORDS];
        let (last, old) = (keys.last_place(), keys.bytes.len());
        keys.bytes.reserve(room);
        let (base, free) = (keys.bytes.as_mut_ptr(), keys.bytes.capacity() - old);
        let mut range = left.raw;
        if let Some(last) = last {
            // Nothing moves the keys before the call is over.
            let (first, len) = (base.wrapping_add(last.start).cast_const(), last.len());
            if range.backward != 0 {
                (range.to, range.to_len) = (first, len);
            } else {
                (range.from, range.from_len, range.past) = (first, len, 1);
            }
        }
        let (bytes, ends_len) = (base.wrapping_add(old), limit.min(MAX_CALL_RECORDS));
        let mut out = RawKeys { bytes, bytes_len: free, ends: ends.as_mut_ptr().cast(), ends_len, filled: 0 };
        // SAFETY: a live invocation; the ends of the range, `free` bytes behind the keys and `ends_len` places for ends
        // outlive the call.
        status_to_result(unsafe { (self.calls().range_keys)(self.invocation, table, &mut range, &mut out) })?;
        for end in ends.iter().take(out.filled) {
            // SAFETY: the host has written the first `filled`.
            keys.ends.push(old + unsafe { end.assume_init_read() });
        }
        let len = keys.ends.last().copied().unwrap_or(old);
        // SAFETY: the host has written the bytes of the keys that it tells of, which end there, within the capacity.
        unsafe { keys.bytes.set_len(len) };
        // Before the empty key there is nothing, and as an end it would stand for none.
        let at_start = range.backward != 0 && out.filled != 0 && keys.last().is_some_and(<[u8]>::is_empty);
        left.raw.finished = u32::from(range.finished != 0 || at_start);
        Ok(())
    }

    /// Counts the keys of a range.
    pub(crate) fn count(&self, table: u64, range: &RangeRemainder<'_>) -> Result<u64, Error> {
        let mut count = 0;
        // SAFETY: a live invocation; both ends of the range outlive the call; `count` is a local.
        status_to_result(unsafe { (self.calls().count)(self.invocation, table, &range.raw, &mut count) })?;
        Ok(count)
    }

    /// Returns the key before which there are so many others; `None` beyond the last.
    pub(crate) fn nth(&self, table: u64, position: u64) -> Result<Option<Vec<u8>>, Error> {
        let (mut key, mut end) = (Vec::<u8>::new(), 0);
        let mut room = KEY_BUFFER_BYTES;
        loop {
            key.reserve_exact(room);
            let (bytes, bytes_len) = (key.as_mut_ptr(), key.capacity());
            let mut out = RawKeys { bytes, bytes_len, ends: &mut end, ends_len: 1, filled: 0 };
            // SAFETY: a live invocation; `bytes_len` bytes and the place for one end outlive the call.
            match unsafe { (self.calls().nth)(self.invocation, table, position, &mut out) } {
                STATUS_OK if out.filled == 1 => {
                    // SAFETY: the host has written the bytes of the key, which end there, within the capacity.
                    unsafe { key.set_len(end) };
                    return Ok(Some(key));
                }
                // The key is longer; its length is not known.
                STATUS_OK => room *= 2,
                STATUS_NOT_FOUND => return Ok(None),
                status => return Err(Error::from_status(status)),
            }
        }
    }

    /// Returns the time at which a record expires, in milliseconds since the Unix epoch (0: never); `None`: there is
    /// none.
    pub(crate) fn expiry(&self, table: u64, hash: u64, key: &[u8]) -> Poll<Result<Option<u64>, Error>> {
        let mut at_ms = 0;
        // SAFETY: a live invocation; the key outlives the call; `at_ms` is a local.
        let status =
            unsafe { (self.calls().expiry)(self.invocation, table, hash, key.as_ptr(), key.len(), &mut at_ms) };
        unless_cold(status, |status| match status {
            STATUS_OK => Ok(Some(at_ms)),
            STATUS_NOT_FOUND => Ok(None),
            status => Err(Error::from_status(status)),
        })
    }

    pub(crate) fn touch(&self, table: u64, key: &[u8], ttl_ms: u64) -> Poll<Result<bool, Error>> {
        // SAFETY: a live invocation; the key outlives the call.
        let status = unsafe { (self.calls().touch)(self.invocation, table, key.as_ptr(), key.len(), ttl_ms) };
        unless_cold(status, |status| match status {
            STATUS_OK => Ok(true),
            STATUS_NOT_FOUND => Ok(false),
            status => Err(Error::from_status(status)),
        })
    }

    /// Fills a buffer with random bytes.
    pub(crate) fn random(&self, bytes: &mut [u8]) -> Result<(), Error> {
        for part in bytes.chunks_mut(MAX_RANDOM_BYTES) {
            // SAFETY: a live invocation; the part outlives the call.
            status_to_result(unsafe { (self.calls().random)(self.invocation, part.as_mut_ptr(), part.len()) })?;
        }
        Ok(())
    }

    /// Returns a secret of the tenant; `None`: there is none of that name.
    pub(crate) fn secret(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let (mut value, mut len) = (Vec::<u8>::with_capacity(MAX_SECRET_BYTES), 0);
        let (to, room) = (value.as_mut_ptr(), value.capacity());
        // SAFETY: a live invocation; the name and `room` bytes outlive the call; `len` is a local.
        match unsafe { (self.calls().secret)(self.invocation, name.as_ptr(), name.len(), to, room, &mut len) } {
            STATUS_OK => {
                // SAFETY: the host has written so many bytes, within the capacity.
                unsafe { value.set_len(len) };
                Ok(Some(value))
            }
            STATUS_NOT_FOUND => Ok(None),
            status => Err(Error::from_status(status)),
        }
    }

    pub(crate) fn now_us(&self) -> u64 {
        // SAFETY: a live invocation.
        unsafe { (self.calls().now_us)(self.invocation) }
    }

    pub(crate) fn table_by_name(&self, name: &str) -> Result<u64, Error> {
        let mut table = 0;
        // SAFETY: a live invocation; the name outlives the call; `table` is a local.
        match unsafe { (self.calls().table_by_name)(self.invocation, name.as_ptr(), name.len(), &mut table) } {
            STATUS_OK => Ok(table),
            STATUS_NOT_FOUND => Err(Error::from_status(crate::abi::STATUS_UNKNOWN_TABLE)),
            status => Err(Error::from_status(status)),
        }
    }

    pub(crate) fn reply(&self, bytes: &[u8]) -> Result<(), Error> {
        // SAFETY: a live invocation; the bytes outlive the call.
        status_to_result(unsafe { (self.calls().reply)(self.invocation, bytes.as_ptr(), bytes.len()) })
    }

    /// Returns the log of the invocation's transaction, which begins with the first call.
    pub(crate) fn notes(&self) -> &'a RefCell<TransactionLog> {
        // SAFETY: a live invocation (see `new`), whose `notes` only this function and `end_transaction` change. The log
        // stays where it is until the invocation ends, or is begun anew, when nothing of it is left.
        unsafe {
            if (*self.invocation).transaction == 0 {
                let log = Box::new(RefCell::new(self.inherited_log()));
                (*self.invocation).notes = Box::into_raw(log).cast();
                (*self.invocation).transaction = 1;
            }
            &*(*self.invocation).notes.cast::<RefCell<TransactionLog>>()
        }
    }

    /// The log that a transaction begins with: its caller's, in an invocation that was called.
    fn inherited_log(&self) -> TransactionLog {
        let mut log = TransactionLog::default();
        if self.is_nested() {
            let inherited = self.call_part(CALL_INHERITED).unwrap_or_default();
            if !inherited.is_empty() && log.absorb(&inherited).is_err() {
                panic!("the transaction of the calling extension is not understood");
            }
        }
        log
    }

    /// Whether another extension has called this one.
    pub(crate) fn is_nested(&self) -> bool {
        // SAFETY: as in `interleave`.
        unsafe { (*self.invocation).nested != 0 }
    }

    /// The transaction so far, for an extension that is called; empty: there is none.
    pub(crate) fn encoded_notes(&self) -> Vec<u8> {
        // SAFETY: as in `interleave`; the library alone changes the field.
        match unsafe { (*self.invocation).transaction } {
            0 if self.is_nested() => self.call_part(CALL_INHERITED).unwrap_or_default(),
            0 => Vec::new(),
            _ => self.notes().borrow().encode(true),
        }
    }

    /// Adds what a called extension has added to the transaction.
    pub(crate) fn absorb_notes(&self, notes: &[u8]) -> Result<(), Error> {
        self.notes().borrow_mut().absorb(notes)
    }

    /// Hands the transaction back to the calling extension: with its changes, or only with what it has read.
    pub(crate) fn return_notes(&self, changes: bool) -> u32 {
        let notes = self.notes().borrow().encode(changes);
        // SAFETY: a live invocation; the notes outlive the call.
        unsafe { (self.calls().call_return)(self.invocation, notes.as_ptr(), notes.len()) }
    }

    /// Asks for a call of another extension; returns the status.
    pub(crate) fn call_begin(&self, name: &str, args: &[u8], notes: &[u8]) -> u32 {
        let (name, name_len) = (name.as_ptr(), name.len());
        let begin = self.calls().call_begin;
        // SAFETY: a live invocation; name, arguments and notes outlive the call.
        unsafe { begin(self.invocation, name, name_len, args.as_ptr(), args.len(), notes.as_ptr(), notes.len()) }
    }

    /// The code of the call that has ended, once; `None`: it is under way.
    pub(crate) fn call_end(&self) -> Option<u32> {
        let mut code = 0;
        // SAFETY: a live invocation; `code` is a local.
        let status = unsafe { (self.calls().call_end)(self.invocation, &mut code) };
        (status == STATUS_OK).then_some(code)
    }

    /// Forgets the call that was asked for.
    pub(crate) fn call_forget(&self) {
        // SAFETY: a live invocation.
        unsafe { (self.calls().call_end)(self.invocation, core::ptr::null_mut()) };
    }

    /// A part of the call that has ended, or of this invocation.
    pub(crate) fn call_part(&self, part: u32) -> Result<Vec<u8>, Error> {
        let (mut bytes, mut len) = (Vec::<u8>::new(), 0);
        loop {
            let (to, capacity) = (bytes.as_mut_ptr(), bytes.capacity());
            // SAFETY: a live invocation; `capacity` bytes outlive the call; `len` is a local.
            match unsafe { (self.calls().call_part)(self.invocation, part, to, capacity, &mut len) } {
                STATUS_OK => {
                    // SAFETY: the host has written so many bytes, within the capacity.
                    unsafe { bytes.set_len(len) };
                    return Ok(bytes);
                }
                STATUS_TOO_LARGE if len > capacity => bytes.reserve_exact(len),
                status => return Err(Error::from_status(status)),
            }
        }
    }

    /// Commits the invocation's transaction. Without `changes`, it only makes the host check whether all reads still
    /// hold.
    pub(crate) fn commit(&self, changes: bool) -> u32 {
        let notes = self.notes().borrow();
        let reads = notes.raw_reads();
        let ranges = notes.raw_ranges();
        let writes = if changes { notes.raw_changes() } else { Vec::new() };
        let first = if changes { writes.as_ptr() } else { core::ptr::null() };
        let (commit, invocation) = (self.calls().commit, self.invocation);
        // SAFETY: a live invocation; all lists, and the keys, rows and values that they name, outlive the call.
        unsafe { commit(invocation, reads.as_ptr(), reads.len(), ranges.as_ptr(), ranges.len(), first, writes.len()) }
    }

    /// Forgets the transaction, if one was begun.
    ///
    /// # Safety
    /// The extension's future is gone, and with it every handle of the transaction and all that it has shown.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) unsafe fn forget_transaction(&self) {
        // SAFETY: made by `notes`, and nothing refers to it any more (caller).
        unsafe {
            if (*self.invocation).transaction != 0 {
                (*self.invocation).transaction = 0;
                drop(Box::from_raw((*self.invocation).notes.cast::<RefCell<TransactionLog>>()));
            }
        }
    }

    /// The bytes that were kept, for as long as the invocation lives.
    pub(crate) fn kept(&self, kept: InvocationBytes) -> &'a [u8] {
        // SAFETY: they are a record's, which the host keeps for 'a, or belong to the transaction's notes, which stay
        // for 'a.
        unsafe { &*kept.0 }
    }

    /// The record that the host wrote, borrowed for the life of the invocation.
    pub(crate) fn record(&self, raw: RawRecord) -> Record<'a> {
        // SAFETY: the host's records are valid and immutable for the life of the invocation, which is 'a.
        let (key, value) = unsafe {
            (core::slice::from_raw_parts(raw.key, raw.key_len), core::slice::from_raw_parts(raw.value, raw.value_len))
        };
        Record { key, value, version: raw.version, flags: raw.flags }
    }
}

/// Pointers to the first keys, of which there may be fewer. Each key is asked for only once, since an `as_ref` of the
/// tenant's may answer otherwise each time.
fn raw_keys<K: AsRef<[u8]>>(keys: &[K]) -> [MaybeUninit<RawKey>; MAX_CALL_KEYS] {
    let mut raw = [const { MaybeUninit::uninit() }; MAX_CALL_KEYS];
    for (raw, key) in raw.iter_mut().zip(keys) {
        let key = key.as_ref();
        raw.write(RawKey { first: key.as_ptr(), len: key.len() });
    }
    raw
}

/// The rest of a range: both ends are the caller's, or keys of records that the invocation was given.
pub(crate) struct RangeRemainder<'k> {
    raw: RawRange,
    ends: PhantomData<&'k [u8]>,
}

impl<'k> RangeRemainder<'k> {
    pub(crate) fn new(from: &'k [u8], to: &'k [u8], direction: Direction) -> RangeRemainder<'k> {
        let raw = RawRange {
            from: from.as_ptr(),
            from_len: from.len(),
            to: to.as_ptr(),
            to_len: to.len(),
            backward: u32::from(direction == Direction::Backward),
            past: 0,
            finished: 0,
            reserved: 0,
        };
        RangeRemainder { raw, ends: PhantomData }
    }

    /// Returns whether nothing is left.
    pub(crate) fn is_finished(&self) -> bool {
        self.raw.finished != 0
    }
}
