//! Counts, positions, expiry, random numbers, microseconds and secrets over a [`TestStore`].
//!
//! Guarantees: it reads and writes what its pointers point to only during the call.
#![allow(unsafe_code)]

use alloc::string::ToString;

use super::TestStore;
use super::arguments::{slice_argument, test_invocation};
use super::range::{ordered_table, requested_span};
use crate::abi::{self, InvocationHeader, MAX_RANDOM_BYTES, RawKeys, RawRange};

pub(super) unsafe extern "C" fn count(
    inv: *mut InvocationHeader,
    table: u64,
    range: *const RawRange,
    count: *mut u64,
) -> u32 {
    // SAFETY: the extension's side calls with its live invocation, a range whose ends are live, and a place for the
    // count.
    let (behind, range, count) = unsafe { (test_invocation(inv), &*range, &mut *count) };
    behind.store.run_count_hook();
    // SAFETY: as above.
    match unsafe { requested_span(&behind.store, table, range) } {
        Ok((table, span)) => {
            // Expired records have keys until they are met.
            *count = span.records(table, 0).count() as u64;
            abi::STATUS_OK
        }
        Err(status) => status,
    }
}

pub(super) unsafe extern "C" fn nth(inv: *mut InvocationHeader, table: u64, position: u64, out: *mut RawKeys) -> u32 {
    // SAFETY: the extension's side calls with its live invocation, and the room that it names.
    let (behind, out) = unsafe { (test_invocation(inv), &mut *out) };
    behind.store.run_count_hook();
    out.filled = 0;
    let table = match ordered_table(&behind.store, table) {
        Ok(table) => table,
        Err(status) => return status,
    };
    let Some(key) = usize::try_from(position).ok().and_then(|position| table.places.keys().nth(position)) else {
        return abi::STATUS_NOT_FOUND;
    };
    if key.len() <= out.bytes_len && out.ends_len > 0 {
        // SAFETY: there is room for the key and for one end.
        unsafe {
            out.bytes.copy_from_nonoverlapping(key.as_ptr(), key.len());
            out.ends.write(key.len());
        }
        out.filled = 1;
    }
    abi::STATUS_OK
}

pub(super) unsafe extern "C" fn expiry(
    inv: *mut InvocationHeader,
    table: u64,
    hash: u64,
    key: *const u8,
    key_len: usize,
    expires_at_ms: *mut u64,
) -> u32 {
    // SAFETY: the extension's side calls with its live invocation, a key and a place for the time.
    let (behind, key, at_ms) = unsafe { (test_invocation(inv), slice_argument(key, key_len), &mut *expires_at_ms) };
    if hash != 0 && hash != TestStore::hash(key) {
        return abi::STATUS_INVALID;
    }
    match behind.store.reach(table).map(|table| table.get(key, behind.store.now_ms)) {
        Ok(Some(record)) => {
            *at_ms = record.expires_at_ms;
            abi::STATUS_OK
        }
        Ok(None) => abi::STATUS_NOT_FOUND,
        Err(status) => status,
    }
}

pub(super) unsafe extern "C" fn touch(
    inv: *mut InvocationHeader,
    table: u64,
    key: *const u8,
    key_len: usize,
    ttl_ms: u64,
) -> u32 {
    // SAFETY: the extension's side calls with its live invocation and a key.
    let (behind, key) = unsafe { (test_invocation(inv), slice_argument(key, key_len)) };
    match behind.store.touch(table, key, ttl_ms) {
        Ok(()) => abi::STATUS_OK,
        Err(status) => status,
    }
}

pub(super) unsafe extern "C" fn random(inv: *mut InvocationHeader, bytes: *mut u8, len: usize) -> u32 {
    if len > MAX_RANDOM_BYTES {
        return abi::STATUS_INVALID;
    }
    // SAFETY: the extension's side calls with its live invocation and a buffer.
    let (behind, bytes) = unsafe { (test_invocation(inv), core::slice::from_raw_parts_mut(bytes, len)) };
    for part in bytes.chunks_mut(8) {
        let number = behind.store.next_random().to_le_bytes();
        part.copy_from_slice(&number[..part.len()]);
    }
    abi::STATUS_OK
}

pub(super) unsafe extern "C" fn now_us(inv: *mut InvocationHeader) -> u64 {
    // SAFETY: the extension's side calls with its live invocation.
    unsafe { test_invocation(inv) }.store.now_us()
}

pub(super) unsafe extern "C" fn secret(
    inv: *mut InvocationHeader,
    name: *const u8,
    name_len: usize,
    to: *mut u8,
    capacity: usize,
    len: *mut usize,
) -> u32 {
    // SAFETY: the extension's side calls with its live invocation, a name and a place for the length.
    let (behind, name, len) = unsafe { (test_invocation(inv), slice_argument(name, name_len), &mut *len) };
    let found = core::str::from_utf8(name).ok().and_then(|name| behind.store.secrets.get(name));
    let Some(value) = found else { return abi::STATUS_NOT_FOUND };
    *len = value.len();
    if value.len() > capacity {
        return abi::STATUS_TOO_LARGE;
    }
    // SAFETY: there is room for `capacity` bytes.
    unsafe { to.copy_from_nonoverlapping(value.as_ptr(), value.len()) };
    abi::STATUS_OK
}

impl TestStore {
    /// Sets a secret, as `sandstorm secret set` does for a tenant; see [`Db::secret`](crate::Db::secret).
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// async fn sign(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    ///     db.reply(&[&db.secret("payments")?[..], args].concat())
    /// }
    /// let mut store = TestStore::new();
    /// store.secret("payments", b"key ");
    /// assert_eq!(store.invoke(sign, b"bill"), Ok(b"key bill".to_vec()));
    /// ```
    ///
    /// # Panics
    /// For a value that a server would refuse: of no bytes, or more than 4,096.
    pub fn secret(&mut self, name: &str, value: &[u8]) -> &mut TestStore {
        assert!((1..=abi::MAX_SECRET_BYTES).contains(&value.len()), "a secret has 1 to 4,096 bytes");
        self.secrets.insert(name.to_string(), value.into());
        self
    }

    /// Calls the hook of [`TestStore::before_counts`].
    fn run_count_hook(&mut self) {
        if let Some(mut hook) = self.count_hook.take() {
            hook(self);
            self.count_hook.get_or_insert(hook);
        }
    }

    /// Lets a record expire after so many milliseconds (0: never).
    fn touch(&mut self, table: u64, key: &[u8], ttl_ms: u64) -> Result<(), u32> {
        let old = self.writable_table(table)?.get(key, self.now_ms).cloned().ok_or(abi::STATUS_NOT_FOUND)?;
        let expires_at_ms = if ttl_ms == 0 { 0 } else { self.now_ms.saturating_add(ttl_ms) };
        self.replace(table, key, &old.value, old.flags, expires_at_ms).map(drop)
    }

    /// The next number of a sequence that looks random (SplitMix64).
    fn next_random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.seed ^ (self.seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Begins the sequence of numbers that [`Db::random`](crate::Db::random) gives anew: the same for the same seed, as
    /// it is at first for each store.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// async fn dice(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    ///     db.reply(&[db.random_below(6) as u8])
    /// }
    /// let mut store = TestStore::new();
    /// let first = store.set_seed(7).invoke(dice, b"");
    /// assert_eq!(store.set_seed(7).invoke(dice, b""), first);
    /// ```
    pub fn set_seed(&mut self, seed: u64) -> &mut TestStore {
        self.seed = seed;
        self
    }

    /// The clock, in milliseconds since the Unix epoch.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// use sandstorm_api::testing::DEFAULT_NOW_MS;
    /// assert_eq!(TestStore::new().now_ms(), DEFAULT_NOW_MS);
    /// ```
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Sets the clock, in milliseconds since the Unix epoch: records expire by it, and `Db::now_ms` shows it.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// async fn time(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    ///     db.reply(db.now_ms().to_string().as_bytes())
    /// }
    /// let mut store = TestStore::new();
    /// assert_eq!(store.set_now_ms(1_000).invoke(time, b""), Ok(b"1000".to_vec()));
    /// ```
    pub fn set_now_ms(&mut self, now_ms: u64) -> &mut TestStore {
        (self.now_ms, self.now_rest_us) = (now_ms, 0);
        self
    }

    /// The clock that [`Db::now_us`](crate::Db::now_us) shows, in microseconds since the Unix epoch.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// let mut store = TestStore::new();
    /// assert_eq!(store.set_now_ms(2).now_us(), 2_000);
    /// ```
    pub fn now_us(&self) -> u64 {
        self.now_ms.saturating_mul(1_000).saturating_add(self.now_rest_us)
    }

    /// Sets the clock, in microseconds since the Unix epoch: [`TestStore::set_now_ms`] with more digits.
    ///
    /// ```
    /// # use sandstorm_api::prelude::*;
    /// # use sandstorm_api::testing::TestStore;
    /// let mut store = TestStore::new();
    /// store.set_now_us(2_345);
    /// assert_eq!((store.now_us(), store.now_ms()), (2_345, 2));
    /// ```
    pub fn set_now_us(&mut self, now_us: u64) -> &mut TestStore {
        (self.now_ms, self.now_rest_us) = (now_us / 1_000, now_us % 1_000);
        self
    }
}
