//! One record: one allocation, immutable except for two bytes that eviction needs.
//!
//! ```text
//! version u64 | value_len u32 | key_len u16 | touched u8 | bits u8
//! | [expires_at_ms u64] | [flags u32] | key | value | [holds u64]
//! ```
//! The header is 16 bytes; expiry and flags take room only in records that have them. Records with a large value
//! ([`ZERO_COPY_MIN_VALUE_BYTES`]) end with their reference count, in the last eight bytes, which are aligned. A value
//! may stay where it arrived, in a packet's buffer. Then an aligned [`SharedBytes`] of it stands in place of value and
//! count ([`EXTERNAL_VALUE`]).
//!
//! What this module guarantees: a [`RecordPtr`] made by [`RecordPtr::allocate`] points at a fully written record until
//! it is given to [`RecordPtr::free`] and no share of it is left. Everything but `touched`, `bits` and the count never
//! changes in between. So shared slices of key and value may be handed out as long as the record is kept. `epochs` and
//! shares keep it.
#![allow(unsafe_code)]

mod eviction_notes;

use self::eviction_notes::cold_record_bytes;
pub(super) use self::eviction_notes::{cold_allocation_bytes, key_fingerprint};
use super::epochs::refcount::RecordRefCount;
use super::slabs;
use crate::limits::{RECORD_CHARGE_BYTES, ZERO_COPY_MIN_VALUE_BYTES};
use crate::spill::SpillAddress;
use sandstorm_net::shared_bytes::{SharedBytes, SharedBytesVTable};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

const HAS_EXPIRY: u8 = 1;
const HAS_FLAGS: u8 = 2;
const LONG_KEY: u8 = 4;
const IN_MAIN_QUEUE: u8 = 8;
const STALE: u8 = 16;
const SENT: u8 = 32;
/// The record came from the system's allocator, although it is small.
const FROM_SYSTEM_ALLOCATOR: u8 = 64;
/// The value is elsewhere; the record contains a share of it.
const EXTERNAL_VALUE: u8 = 128;

/// Values of `touched`: the record was read; and the same, kept for memcached's clients to query.
const TOUCHED: u8 = 1;
const FETCHED: u8 = 2;
/// The record was read from the disk for a read that has not come yet, which counts for nothing.
const ARRIVED: u8 = 4;
/// Value of `touched` for a cold record, with the five bits of its length's class. Its `value_len` is the block of its
/// run, its `key_len` the key's fingerprint. Of the optional parts it has the expiry alone; `EXTERNAL_VALUE` is set, so
/// that the fast paths need not ask.
const COLD: u8 = 0x80;
const COLD_CLASS_SHIFT: u32 = 2;

/// The fixed part of a record.
#[repr(C)]
pub(super) struct RecordHeader {
    version: u64,
    value_len: u32,
    key_len: u16,
    /// Not 0 once the record was read since eviction last checked; readers write it, and only to change it.
    touched: AtomicU8,
    /// `HAS_EXPIRY | HAS_FLAGS | LONG_KEY | PLAIN | OUTSIDE` never change; the others are written under the lock of the
    /// stripe.
    bits: AtomicU8,
}

const HEADER_BYTES: usize = size_of::<RecordHeader>();
const _: () = assert!(HEADER_BYTES == 16 && align_of::<RecordHeader>() == 8);
const REFCOUNT_BYTES: usize = size_of::<RecordRefCount>();
const _: () = assert!(REFCOUNT_BYTES == 8 && align_of::<RecordRefCount>() <= 8);
const SHARED_BYTES_LEN: usize = size_of::<SharedBytes>();
const _: () = assert!(align_of::<SharedBytes>() <= align_of::<RecordHeader>());

/// The number of records in memory whose key starts with `counted:`, for the test that none is lost; and with `held:`,
/// for the tests of held ones.
#[cfg(test)]
pub(super) static COUNTED: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0);
#[cfg(test)]
pub(super) static COUNTED_SHARED: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0);

/// Counts a record that is made or freed.
#[cfg(test)]
fn count(key: &[u8], change: i64) {
    let counted = [(&b"counted:"[..], &COUNTED), (b"held:", &COUNTED_SHARED)];
    for (_, counted) in counted.into_iter().filter(|(prefix, _)| key.starts_with(prefix)) {
        counted.fetch_add(change, Ordering::SeqCst);
    }
}

/// An owned pointer to a record, as slots and garbage bags hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordPtr(NonNull<RecordHeader>);

// SAFETY: a record is immutable but for its two atomic bytes; `epochs`, not the thread, decides when it may be freed.
unsafe impl Send for RecordPtr {}
// SAFETY: as above.
unsafe impl Sync for RecordPtr {}

/// The number of parts from which a value may be assembled without copying them first: the bytes kept in front, the new
/// ones, the bytes kept behind.
pub(super) const VALUE_PARTS: usize = 3;

/// Returns the bytes of a value of these parts.
pub(super) fn parts_len(parts: [&[u8]; VALUE_PARTS]) -> usize {
    parts.iter().map(|part| part.len()).fold(0, usize::saturating_add)
}

/// The source of a record's value.
#[derive(Clone, Copy)]
pub(super) enum ValueSource<'a> {
    /// These bytes, one part after the other.
    Parts([&'a [u8]; VALUE_PARTS]),
    /// A shared value, left at its address.
    External(&'a SharedBytes),
}

impl<'a> From<&'a [u8]> for ValueSource<'a> {
    #[inline]
    fn from(value: &'a [u8]) -> Self {
        ValueSource::Parts([value, b"", b""])
    }
}

impl ValueSource<'_> {
    /// Returns the bytes of the value.
    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            ValueSource::Parts(parts) => parts_len(*parts),
            ValueSource::External(share) => share.len(),
        }
    }
}

/// Returns the bytes of a record with these lengths, with its allocation's rounding; the same wherever its value lies.
pub(super) fn allocation_bytes(key_len: usize, value_len: usize, flags: u32, expires_at_ms: u64) -> usize {
    slabs::allocation_size(inline_record_bytes(key_len, value_len, flags, expires_at_ms))
}

/// Returns the bytes of a record with its value inline.
fn inline_record_bytes(key_len: usize, value_len: usize, flags: u32, expires_at_ms: u64) -> usize {
    let optional = if expires_at_ms != 0 { 8 } else { 0 } + if flags != 0 { 4 } else { 0 };
    with_refcount(HEADER_BYTES + optional + key_len + value_len, value_len)
}

/// Returns the bytes of a record whose value ends after so many, with the count.
fn with_refcount(bytes: usize, value_len: usize) -> usize {
    if value_len < ZERO_COPY_MIN_VALUE_BYTES { bytes } else { bytes.next_multiple_of(REFCOUNT_BYTES) + REFCOUNT_BYTES }
}

/// Returns the bits of the optional parts that a record has.
#[inline]
fn layout_bits(key_len: usize, flags: u32, expires_at_ms: u64) -> u8 {
    let set = |bit, on| if on { bit } else { 0 };
    let long_key = set(LONG_KEY, key_len > usize::from(u16::MAX));
    set(HAS_EXPIRY, expires_at_ms != 0) | set(HAS_FLAGS, flags != 0) | long_key
}

/// Returns the offset of the share in a record whose key ends after so many bytes.
fn align_for_share(bytes: usize) -> usize {
    bytes.next_multiple_of(align_of::<SharedBytes>())
}

impl RecordPtr {
    /// Allocates and writes a record; `None` when memory is out or a length does not fit (keys to 128 KiB - 1, values
    /// to 4 GiB - 1; the table's own limits are far lower).
    pub(super) fn allocate(
        version: u64,
        key: &[u8],
        value: ValueSource<'_>,
        flags: u32,
        expires_at_ms: u64,
    ) -> Option<RecordPtr> {
        let value_bytes = value.len();
        let value_len = u32::try_from(value_bytes).ok()?;
        if key.len() > (1 << 17) - 1 {
            return None;
        }
        let mut bits = layout_bits(key.len(), flags, expires_at_ms);
        let bytes = match value {
            ValueSource::Parts(_) => inline_record_bytes(key.len(), value_bytes, flags, expires_at_ms),
            ValueSource::External(_) => {
                bits |= EXTERNAL_VALUE;
                align_for_share(inline_record_bytes(key.len(), 0, flags, expires_at_ms)) + SHARED_BYTES_LEN
            }
        };
        let (base, is_plain) = slabs::allocate_record(bytes)?;
        if is_plain {
            bits |= FROM_SYSTEM_ALLOCATOR;
        }
        let header = RecordHeader {
            version,
            value_len,
            key_len: (key.len() & 0xffff) as u16,
            touched: AtomicU8::new(0),
            bits: AtomicU8::new(bits),
        };
        // SAFETY: `base` is aligned for a Header (to 8), and so for a Share, and owns `bytes` bytes, which is the sum
        // of what is written below, in this order; none of the sources overlaps the fresh allocation.
        unsafe {
            base.cast::<RecordHeader>().write(header);
            let mut at = base.add(HEADER_BYTES);
            if expires_at_ms != 0 {
                at.cast::<[u8; 8]>().write(expires_at_ms.to_ne_bytes());
                at = at.add(8);
            }
            if flags != 0 {
                at.cast::<[u8; 4]>().write(flags.to_ne_bytes());
                at = at.add(4);
            }
            at.copy_from_nonoverlapping(NonNull::from(key).cast(), key.len());
            at = at.add(key.len());
            match value {
                ValueSource::Parts(parts) => {
                    for part in parts {
                        at.copy_from_nonoverlapping(NonNull::from(part).cast(), part.len());
                        at = at.add(part.len());
                    }
                    if value_bytes >= ZERO_COPY_MIN_VALUE_BYTES {
                        base.add(bytes - REFCOUNT_BYTES).cast::<RecordRefCount>().write(RecordRefCount::one());
                    }
                }
                ValueSource::External(share) => {
                    base.add(bytes - SHARED_BYTES_LEN).cast::<SharedBytes>().write(share.clone())
                }
            }
        }
        #[cfg(test)]
        count(key, 1);
        Some(RecordPtr(base.cast()))
    }

    /// Allocates what stays in memory of a record whose key and value are on the disk: 16 bytes, and 8 for an expiry.
    /// `None` when memory is out.
    pub(super) fn allocate_cold(
        version: u64,
        key_fingerprint: u16,
        expires_at_ms: u64,
        address: SpillAddress,
    ) -> Option<RecordPtr> {
        let (base, is_plain) = slabs::allocate_record(cold_record_bytes(expires_at_ms))?;
        let expiry = if expires_at_ms != 0 { HAS_EXPIRY } else { 0 };
        let plain = if is_plain { FROM_SYSTEM_ALLOCATOR } else { 0 };
        let header = RecordHeader {
            version,
            value_len: address.block,
            key_len: key_fingerprint,
            touched: AtomicU8::new(COLD | address.length_class << COLD_CLASS_SHIFT | TOUCHED | FETCHED),
            bits: AtomicU8::new(EXTERNAL_VALUE | expiry | plain),
        };
        // SAFETY: `base` is aligned for a header and owns its bytes, and eight more if there is an expiry.
        unsafe {
            base.cast::<RecordHeader>().write(header);
            if expires_at_ms != 0 {
                base.add(HEADER_BYTES).cast::<[u8; 8]>().write(expires_at_ms.to_ne_bytes());
            }
        }
        Some(RecordPtr(base.cast()))
    }

    /// The record as a slot stores it.
    #[inline(always)]
    pub(super) fn as_ptr(self) -> *mut u8 {
        self.0.as_ptr().cast()
    }

    /// The inverse of [`RecordPtr::as_ptr`]; `None` for null.
    ///
    /// # Safety
    /// `ptr` is null or came from [`RecordPtr::as_ptr`] of a record that is not freed.
    pub(super) unsafe fn from_ptr(ptr: *mut u8) -> Option<RecordPtr> {
        NonNull::new(ptr.cast()).map(RecordPtr)
    }

    /// Returns the bytes that the record takes, with its allocation's rounding.
    ///
    /// # Safety
    /// The record is not freed.
    pub(super) unsafe fn bytes(self) -> usize {
        // SAFETY: the caller's promise.
        unsafe { self.as_ref() }.taken_bytes()
    }

    /// Returns the record, for as long as the caller ensures that it is kept.
    ///
    /// # Safety
    /// The record is not freed during `'a`.
    pub(super) unsafe fn as_ref<'a>(self) -> RecordRef<'a> {
        RecordRef { record: self.0, lifetime: PhantomData }
    }

    /// Frees the record, or leaves that to the last of its shares.
    ///
    /// # Safety
    /// No thread reads the record now or later, except through shares of it, and it is freed once.
    pub(super) unsafe fn free(self) {
        // SAFETY: the record is alive up to here (caller); this is the hold with which it was made.
        unsafe {
            if self.refcount().is_none_or(RecordRefCount::let_go) {
                self.destroy();
            }
        }
    }

    /// Returns the count of holds; none of a record that cannot be held.
    ///
    /// # Safety
    /// The record is not destroyed during `'a`.
    unsafe fn refcount<'a>(self) -> Option<&'a RecordRefCount> {
        // SAFETY: the caller's promise; `allocate` has written a count at the end of records of such a length, which
        // are aligned to 8.
        unsafe {
            let record = self.as_ref();
            if record.value_len() < ZERO_COPY_MIN_VALUE_BYTES || record.bits() & EXTERNAL_VALUE != 0 {
                return None;
            }
            Some(self.0.cast::<u8>().add(record.length() - REFCOUNT_BYTES).cast::<RecordRefCount>().as_ref())
        }
    }

    /// Gives the record's memory back.
    ///
    /// # Safety
    /// Nothing holds the record any more.
    unsafe fn destroy(self) {
        // SAFETY: the record is alive up to here (caller); its length is the one of `allocate`.
        unsafe {
            #[cfg(test)]
            count(self.as_ref().key(), -1);
            let (mut bytes, bits) = (self.as_ref().length(), self.as_ref().bits());
            if self.as_ref().has_external_value() {
                let at = self.as_ref().share_offset();
                self.0.cast::<u8>().add(at).cast::<SharedBytes>().drop_in_place();
                bytes = at + SHARED_BYTES_LEN;
            }
            if bits & FROM_SYSTEM_ALLOCATOR != 0 {
                slabs::free_unslabbed(self.0.cast(), bytes);
            } else {
                slabs::free(self.0.cast(), bytes);
            }
        }
    }
}

/// Adds a hold to a record.
///
/// # Safety
/// The record counts its holders, and has one.
unsafe extern "C" fn add_ref(record: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(record) = RecordPtr::from_ptr(record.cast())
            && let Some(refcount) = record.refcount()
        {
            refcount.add_ref();
        }
    }
}

/// Releases a hold, and frees the record if that was the last. It runs on any thread: slabs take back objects that
/// another thread has allocated.
///
/// # Safety
/// The record counts its holders, and this hold is the caller's, which it gives up.
unsafe extern "C" fn release(record: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(record) = RecordPtr::from_ptr(record.cast()) {
            record.free();
        }
    }
}

static RECORD_VTABLE: SharedBytesVTable = SharedBytesVTable { add_ref, release };

/// A borrowed record. Key and value are slices of the record itself, or of its shared value: no copy, no count, no
/// destructor.
#[derive(Clone, Copy)]
pub struct RecordRef<'a> {
    record: NonNull<RecordHeader>,
    lifetime: PhantomData<&'a [u8]>,
}

// SAFETY: shared access to immutable bytes and two atomics.
unsafe impl Send for RecordRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for RecordRef<'_> {}

impl std::fmt::Debug for RecordRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordRef")
            .field("key", &self.key())
            .field("value_len", &self.value_len())
            .field("version", &self.version())
            .finish()
    }
}

impl<'a> RecordRef<'a> {
    #[inline(always)]
    fn header(&self) -> &'a RecordHeader {
        // SAFETY: a RecordRef<'a> is only made (`RecordPtr::as_ref`) for a record that is kept during 'a.
        unsafe { self.record.as_ref() }
    }

    #[inline(always)]
    fn bits(&self) -> u8 {
        self.header().bits.load(Ordering::Relaxed)
    }

    /// Returns offset and length of the key.
    #[inline]
    fn key_range(&self) -> (usize, usize) {
        self.key_range_with(self.bits())
    }

    /// As above with the bits read once, which the compiler would not do by itself.
    #[inline]
    fn key_range_with(&self, bits: u8) -> (usize, usize) {
        let len = usize::from(self.header().key_len);
        // Most records have none of these bits, so one test for all of them saves the single ones.
        if bits & (HAS_EXPIRY | HAS_FLAGS | LONG_KEY | EXTERNAL_VALUE) == 0 {
            return (HEADER_BYTES, len);
        }
        let before = if bits & HAS_EXPIRY != 0 { 8 } else { 0 } + if bits & HAS_FLAGS != 0 { 4 } else { 0 };
        if self.is_cold() {
            return (HEADER_BYTES + before, 0);
        }
        (HEADER_BYTES + before, len | if bits & LONG_KEY != 0 { 1 << 16 } else { 0 })
    }

    #[inline(always)]
    fn value_len(&self) -> usize {
        self.header().value_len as usize
    }

    fn has_external_value(&self) -> bool {
        self.bits() & EXTERNAL_VALUE != 0 && !self.is_cold()
    }

    /// Returns the offset of the share of an external value.
    fn share_offset(&self) -> usize {
        let (at, len) = self.key_range();
        align_for_share(at + len)
    }

    /// Returns the share of an external value.
    fn outside(&self) -> Option<&'a SharedBytes> {
        // SAFETY: `allocate` has written a share there in records with this bit; it lives as long as the record, which
        // is kept during 'a.
        self.has_external_value()
            .then(|| unsafe { self.record.cast::<u8>().add(self.share_offset()).cast::<SharedBytes>().as_ref() })
    }

    /// Returns the bytes of the record with its value in it, as they are charged wherever the value lies.
    fn length(&self) -> usize {
        let (at, len) = self.key_range();
        if self.is_cold() {
            return at;
        }
        with_refcount(at + len + self.value_len(), self.value_len())
    }

    /// Returns a share of the value, which may be kept for any time, whatever happens to the key. It keeps the whole
    /// record, which no table is charged for once it was replaced: the holder must bound how much it keeps so. None for
    /// a value that is shorter than [`ZERO_COPY_MIN_VALUE_BYTES`], or than its key.
    pub fn share(&self) -> Option<SharedBytes> {
        let (key, value) = self.key_and_value();
        if let Some(share) = self.outside() {
            return (value.len() >= ZERO_COPY_MIN_VALUE_BYTES.max(key.len())).then(|| share.clone());
        }
        let record = RecordPtr(self.record);
        // SAFETY: the record is kept during 'a, so the hold of its table or of the garbage exists: it is released only
        // after that.
        let refcount = unsafe { record.refcount() }.filter(|_| value.len() >= key.len())?;
        refcount.add_ref();
        // SAFETY: the value is the record's, which is destroyed with its last hold; one was added for this share.
        Some(unsafe { SharedBytes::new(NonNull::from(value), self.record.cast(), &RECORD_VTABLE) })
    }

    /// Returns the bytes that the record takes, with its allocation's rounding.
    pub(super) fn taken_bytes(&self) -> usize {
        slabs::allocation_size(self.length())
    }

    /// Returns the bytes that the record counts against its table's quota.
    pub fn charged_bytes(&self) -> u64 {
        self.taken_bytes() as u64 + RECORD_CHARGE_BYTES
    }

    #[inline(always)]
    fn slice(&self, offset: usize, len: usize) -> &'a [u8] {
        // SAFETY: offset + len lies within the allocation for the (offset, len) pairs used below: they repeat the
        // layout written by `allocate`; those bytes never change while the record is kept, which it is during 'a.
        unsafe { std::slice::from_raw_parts(self.record.cast::<u8>().add(offset).as_ptr(), len) }
    }

    /// Returns the key.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        let (at, len) = self.key_range();
        self.slice(at, len)
    }

    /// Returns the value.
    #[inline]
    pub fn value(&self) -> &'a [u8] {
        self.key_and_value().1
    }

    /// Returns key and value.
    #[inline]
    pub fn key_and_value(&self) -> (&'a [u8], &'a [u8]) {
        let bits = self.bits();
        let (at, len) = self.key_range_with(bits);
        let value = match bits & EXTERNAL_VALUE {
            0 => self.slice(at + len, self.value_len()),
            _ => self.outside().map_or(&[][..], SharedBytes::as_ref),
        };
        (self.slice(at, len), value)
    }

    /// Returns the key and the value behind it as one slice; `None`: the value lies elsewhere.
    #[inline]
    pub fn key_with_value(&self) -> Option<&'a [u8]> {
        let bits = self.bits();
        let (at, len) = self.key_range_with(bits);
        (bits & EXTERNAL_VALUE == 0).then(|| self.slice(at, len + self.value_len()))
    }

    /// Returns the version: it grows with every write of the key, also across delete and re-insert.
    #[inline(always)]
    pub fn version(&self) -> u64 {
        self.header().version
    }

    /// Returns the caller's flags of the last write.
    #[inline(always)]
    pub fn flags(&self) -> u32 {
        let bits = self.bits();
        if bits & HAS_FLAGS == 0 {
            return 0;
        }
        let at = HEADER_BYTES + if bits & HAS_EXPIRY != 0 { 8 } else { 0 };
        self.slice(at, 4).try_into().map_or(0, u32::from_ne_bytes)
    }

    /// Returns the time from which on the record counts as absent, in milliseconds since the Unix epoch; 0: never.
    pub fn expires_at_ms(&self) -> u64 {
        if self.bits() & HAS_EXPIRY == 0 {
            return 0;
        }
        self.slice(HEADER_BYTES, 8).try_into().map_or(0, u64::from_ne_bytes)
    }

    /// Returns whether the record counts as absent at `now_ms`.
    pub fn is_expired(&self, now_ms: u64) -> bool {
        let at = self.expires_at_ms();
        at != 0 && at <= now_ms
    }
}
