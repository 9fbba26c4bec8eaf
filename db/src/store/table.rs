//! The table: a locked map; replaced records are kept until the table goes.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use super::record::{RecordPtr, allocation_bytes};
use super::{Condition, Epochs, Guard, Mode, Participant, RecordRef, StoreError, TableConfig, TableStats, Write};
use crate::limits::RECORD_CHARGE_BYTES;

/// One tenant's named map from keys to records.
pub struct Table {
    config: TableConfig,
    secrets: RapidSecrets,
    inner: Mutex<Inner>,
    _epochs: Arc<Epochs>,
}

#[derive(Default)]
struct Inner {
    records: BTreeMap<(u64, Vec<u8>), RecordPtr>,
    replaced: Vec<RecordPtr>,
    last_version: u64,
    stats: TableStats,
}

fn charge(record: RecordRef<'_>) -> u64 {
    let bytes =
        allocation_bytes(record.key().len(), record.value().len(), record.flags(), record.expires_at_ms()) as u64;
    bytes + RECORD_CHARGE_BYTES
}

impl Inner {
    fn live<'a>(&self, hash: u64, key: &[u8], now_ms: u64) -> Option<RecordRef<'a>> {
        let found = self.records.get(&(hash, key.to_vec()))?;
        // SAFETY: records are freed when the table is dropped, not before.
        let record = unsafe { found.as_ref() };
        (!record.is_expired(now_ms)).then_some(record)
    }

    fn remove(&mut self, hash: u64, key: &[u8]) -> bool {
        let Some(record) = self.records.remove(&(hash, key.to_vec())) else { return false };
        // SAFETY: as in `live`.
        self.stats.bytes -= charge(unsafe { record.as_ref() });
        self.stats.records -= 1;
        self.replaced.push(record);
        true
    }
}

impl Table {
    /// An empty table with a random hash seed.
    pub fn new(config: TableConfig, epochs: Arc<Epochs>) -> Table {
        Table::with_seed(config, epochs, rand::random())
    }

    /// An empty table with a given hash seed, for tests and figures that must repeat.
    pub fn with_seed(config: TableConfig, epochs: Arc<Epochs>, seed: u64) -> Table {
        let stats = TableStats { quota_bytes: config.quota_bytes, ..TableStats::default() };
        let inner = Mutex::new(Inner { stats, ..Inner::default() });
        Table { config, secrets: RapidSecrets::seed(seed), inner, _epochs: epochs }
    }

    /// The table's keyed hash of a key; never 0.
    pub fn hash(&self, key: &[u8]) -> u64 {
        let hash = rapidhash_v3_seeded(key, &self.secrets);
        if hash == 0 { 1 } else { hash }
    }

    /// Whether this server owns the tablet in which `hash` lies.
    pub fn owns(&self, hash: u64) -> bool {
        hash != 0
    }

    /// Asks the processor for the bucket of `hash`; returns at once.
    pub fn prefetch_bucket(&self, _hash: u64) {}

    /// Asks the processor for the record that the bucket of `hash` names, if any. Needs the same protection as a read.
    pub fn prefetch_record(&self, _hash: u64) {}

    /// The live record of `key`. `hash` is [`Table::hash`] of the key.
    pub fn get<'g>(&'g self, _guard: &'g Guard<'_>, hash: u64, key: &[u8], now_ms: u64) -> Option<RecordRef<'g>> {
        self.inner.lock().live(hash, key, now_ms)
    }

    /// The same for an invocation, without a guard.
    ///
    /// # Safety
    /// The caller holds a [`super::Pin`] of the table's epochs, and keeps it and the table during `'a`.
    pub unsafe fn get_pinned<'a>(&self, hash: u64, key: &[u8], now_ms: u64) -> Option<RecordRef<'a>> {
        self.inner.lock().live(hash, key, now_ms)
    }

    /// Writes a record; answers its version.
    pub fn put(
        &self,
        _participant: &Participant,
        hash: u64,
        key: &[u8],
        value: &[u8],
        write: &Write,
        now_ms: u64,
    ) -> Result<u64, StoreError> {
        self.put_locked(&mut self.inner.lock(), hash, key, value, write, now_ms)
    }

    fn put_locked(
        &self,
        inner: &mut Inner,
        hash: u64,
        key: &[u8],
        value: &[u8],
        write: &Write,
        now_ms: u64,
    ) -> Result<u64, StoreError> {
        if key.len() > self.config.max_key_len {
            return Err(StoreError::KeyTooLarge);
        }
        if value.len() > self.config.max_value_len {
            return Err(StoreError::ValueTooLarge);
        }
        if !self.owns(hash) {
            return Err(StoreError::WrongServer);
        }
        let found = inner.live(hash, key, now_ms);
        if !write.condition.holds(found.map(|record| record.version())) {
            return Err(StoreError::Conflict);
        }
        let old = found.map_or(0, charge);
        let new = allocation_bytes(key.len(), value.len(), write.flags, write.expires_at_ms) as u64;
        let new = new + RECORD_CHARGE_BYTES;
        while new > old && inner.stats.bytes - old + new > self.config.quota_bytes {
            let victim = inner.records.keys().find(|(h, k)| (*h, k.as_slice()) != (hash, key)).cloned();
            let Some((victim_hash, victim)) = victim.filter(|_| self.config.mode == Mode::Cache) else {
                inner.stats.refusals += 1;
                return Err(StoreError::OutOfMemory);
            };
            inner.remove(victim_hash, &victim);
            inner.stats.evictions += 1;
        }
        let version = inner.last_version + 1;
        let record = RecordPtr::allocate(version, key, value, write.flags, write.expires_at_ms)
            .ok_or(StoreError::OutOfMemory)?;
        inner.last_version = version;
        inner.remove(hash, key);
        inner.records.insert((hash, key.to_vec()), record);
        inner.stats.records += 1;
        inner.stats.bytes += new;
        Ok(version)
    }

    /// Deletes the record of `key`; answers whether there was a live one.
    pub fn delete(
        &self,
        _participant: &Participant,
        hash: u64,
        key: &[u8],
        condition: Condition,
        now_ms: u64,
    ) -> Result<bool, StoreError> {
        let mut inner = self.inner.lock();
        let found = inner.live(hash, key, now_ms).map(|record| record.version());
        match condition {
            Condition::Always if found.is_none() => Ok(false),
            condition if !condition.holds(found) => Err(StoreError::Conflict),
            _ => Ok(inner.remove(hash, key)),
        }
    }

    /// Adds to a decimal ASCII value (absent: 0); answers the sum and the new version.
    pub fn increment(
        &self,
        _participant: &Participant,
        hash: u64,
        key: &[u8],
        delta: i64,
        now_ms: u64,
    ) -> Result<(i64, u64), StoreError> {
        let mut inner = self.inner.lock();
        let found = inner.live(hash, key, now_ms);
        let old = match found {
            None => 0,
            Some(record) => std::str::from_utf8(record.value())
                .ok()
                .and_then(|text| text.parse::<i64>().ok())
                .ok_or(StoreError::NotANumber)?,
        };
        let sum = old.checked_add(delta).ok_or(StoreError::NotANumber)?;
        let write = Write {
            flags: found.map_or(0, |record| record.flags()),
            expires_at_ms: found.map_or(0, |record| record.expires_at_ms()),
            ..Write::default()
        };
        let version = self.put_locked(&mut inner, hash, key, sum.to_string().as_bytes(), &write, now_ms)?;
        Ok((sum, version))
    }

    /// Shows up to `limit` live records from `cursor` on (0: the start); answers the next cursor, `None` at the end.
    /// Records that stay unchanged during a whole scan are seen at least once.
    pub fn scan<'g>(
        &'g self,
        _guard: &'g Guard<'_>,
        cursor: u64,
        limit: usize,
        now_ms: u64,
        f: &mut dyn FnMut(RecordRef<'g>),
    ) -> Option<u64> {
        let mut page = Vec::new();
        let mut next = None;
        for ((hash, _), record) in self.inner.lock().records.range((cursor, Vec::new())..) {
            if page.len() >= limit {
                next = Some(*hash);
                break;
            }
            // SAFETY: records are freed when the table is dropped, and 'g borrows the table.
            page.push(unsafe { record.as_ref::<'g>() });
        }
        page.into_iter().filter(|record| !record.is_expired(now_ms)).for_each(f);
        next
    }

    /// Removes expired records among the next `slots` slots; answers how many.
    pub fn sweep(&self, _participant: &Participant, now_ms: u64, slots: usize) -> usize {
        let mut inner = self.inner.lock();
        let expired: Vec<_> = inner
            .records
            .iter()
            // SAFETY: records are freed when the table is dropped.
            .filter(|(_, record)| unsafe { record.as_ref() }.is_expired(now_ms))
            .map(|(key, _)| key.clone())
            .take(slots)
            .collect();
        expired.iter().for_each(|(hash, key)| {
            inner.remove(*hash, key);
        });
        inner.stats.expirations += expired.len() as u64;
        expired.len()
    }

    /// Counters.
    pub fn stats(&self) -> TableStats {
        self.inner.lock().stats
    }

    /// Removes every record.
    pub fn clear(&self, _participant: &Participant) {
        let mut inner = self.inner.lock();
        let keys: Vec<_> = inner.records.keys().cloned().collect();
        keys.iter().for_each(|(hash, key)| {
            inner.remove(*hash, key);
        });
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        let all = inner.records.values().chain(inner.replaced.iter());
        // SAFETY: the table goes, so no reference that borrows it is left; each record is in one of the two once.
        all.for_each(|record| unsafe { record.free() });
    }
}
