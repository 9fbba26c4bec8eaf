//! A record, as a test sees it.

use alloc::boxed::Box;

use crate::abi::RawRecord;

/// One record of a [`TestStore`](super::TestStore), as [`TestStore::record`](super::TestStore::record) shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestRecord {
    pub(super) key: Box<[u8]>,
    pub(super) value: Box<[u8]>,
    pub(super) version: u64,
    pub(super) flags: u32,
    pub(super) expires_at_ms: u64,
}

impl TestRecord {
    /// The value.
    ///
    /// ```
    /// # let mut store = sandstorm_api::testing::TestStore::new();
    /// # let table = store.table("stock");
    /// store.put_with(table, b"apple", b"3", 7, 1_000);
    /// assert_eq!(store.record(table, b"apple").unwrap().value(), b"3");
    /// ```
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// The version; grows with every write.
    ///
    /// ```
    /// # let mut store = sandstorm_api::testing::TestStore::new();
    /// # let table = store.table("stock");
    /// store.put_with(table, b"apple", b"3", 7, 1_000);
    /// let version = store.put(table, b"apple", b"4");
    /// assert_eq!(store.record(table, b"apple").unwrap().version(), version);
    /// ```
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The flags that the writer stored.
    ///
    /// ```
    /// # let mut store = sandstorm_api::testing::TestStore::new();
    /// # let table = store.table("stock");
    /// store.put_with(table, b"apple", b"3", 7, 1_000);
    /// assert_eq!(store.record(table, b"apple").unwrap().flags(), 7);
    /// ```
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Returns the time at which the record expires, in milliseconds since the Unix epoch; 0: never.
    ///
    /// ```
    /// # let mut store = sandstorm_api::testing::TestStore::new();
    /// # let table = store.table("stock");
    /// store.put_with(table, b"apple", b"3", 7, 1_000);
    /// let expires_at_ms = store.record(table, b"apple").unwrap().expires_at_ms();
    /// assert_eq!(expires_at_ms, store.now_ms() + 1_000);
    /// ```
    pub fn expires_at_ms(&self) -> u64 {
        self.expires_at_ms
    }

    pub(super) fn is_live_at(&self, now_ms: u64) -> bool {
        self.expires_at_ms == 0 || now_ms < self.expires_at_ms
    }

    pub(super) fn bytes(&self) -> usize {
        self.key.len() + self.value.len()
    }

    pub(super) fn raw(&self) -> RawRecord {
        RawRecord {
            value: self.value.as_ptr(),
            value_len: self.value.len(),
            key: self.key.as_ptr(),
            key_len: self.key.len(),
            version: self.version,
            flags: self.flags,
            reserved: 0,
        }
    }
}
