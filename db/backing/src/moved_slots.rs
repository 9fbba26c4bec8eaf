//! Keys of slots that another server of a cluster takes. Their objects stay in place. This server writes what the
//! backing does not have yet before it gives the slots away, and never afterwards.
//!
//! A crash may bring back a mark that had gone. A start then finds an old change in its log, of a key that another
//! server may have changed since. So a key is written only while this server is sure that it owns the slot; a key that
//! another server owns is forgotten.

use std::sync::atomic::Ordering::Relaxed;

use sandstorm_store::slots::{SlotSpan, WriteBack};
use sandstorm_store::{Participant, RecordTable};

use crate::backed_table::BackedTable;
use crate::object_store::BackingError;
use crate::unix_ms;

/// What the backing does not have yet of some slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirtySlots {
    /// Keys with a change that it does not have.
    pub keys: usize,
    /// Those of them that another writer has changed as well: an operator decides which change stays.
    pub conflicted: usize,
}

impl BackedTable {
    /// What the backing does not have yet of some slots.
    pub fn dirty_in(&self, span: SlotSpan) -> DirtySlots {
        let mut found = DirtySlots::default();
        for states in self.shards() {
            let changed = states.dirty.iter().filter(|(key, dirty)| dirty.change != 0 && span.has(key));
            for (_, dirty) in changed {
                found.keys += 1;
                found.conflicted += usize::from(dirty.is_conflicted);
            }
        }
        found
    }

    /// What tells the objects from those that another server has under the same URL; `None`: there are no others.
    ///
    /// # Errors
    /// The backing does not answer.
    pub fn identity(&self) -> Result<Option<String>, BackingError> {
        self.objects().identity()
    }

    /// Whether the objects are in this server's memory.
    pub fn is_in_memory(&self) -> bool {
        self.settings().url.starts_with("memory:")
    }

    /// Forgets what is known of the keys of some slots, which are not this server's: what it has looked for, and what
    /// it was to write.
    pub fn forget_slots(&self, participant: &Participant, span: SlotSpan) {
        let mut dirty = Vec::new();
        for mut states in self.shards() {
            states.absent.retain(|key, _| !span.has(key));
            dirty.extend(states.dirty.keys().filter(|key| span.has(key)).cloned());
            // What is being loaded may be older than what the other server writes.
            let loading: Vec<_> = states.loads.keys().filter(|key| span.has(key)).cloned().collect();
            states.overtaken.extend(loading);
        }
        let Some(owner) = self.owner.upgrade() else { return };
        dirty.iter().for_each(|key| self.forget_dirty(participant, owner.records(), key));
    }

    /// Whether a dirty key is to be written now; one that is another server's is forgotten.
    pub(crate) fn is_to_be_written(&self, participant: &Participant, table: &RecordTable, key: &[u8]) -> bool {
        match table.slots().map_or(WriteBack::Now, |slots| slots.write_back(key)) {
            WriteBack::Now => true,
            WriteBack::Later => false,
            WriteBack::Never => {
                self.forget_dirty(participant, table, key);
                false
            }
        }
    }

    fn forget_dirty(&self, participant: &Participant, table: &RecordTable, key: &[u8]) {
        let hash = table.hash(key);
        let ended = table.with_stripe(participant, (hash, key), unix_ms(), |_| {
            let dirty = self.shard(hash).dirty.remove(key)?;
            self.dirty_bytes.fetch_sub(dirty.held_bytes(), Relaxed);
            self.dirty_keys.fetch_sub(u64::from(dirty.change != 0), Relaxed);
            self.remove_mark(participant, key);
            Some([dirty.wait, dirty.written_wait])
        });
        ended.into_iter().flatten().for_each(|wait| self.end_wait(wait, false));
    }
}
