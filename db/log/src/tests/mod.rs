//! What the log promises, against a model of what was acknowledged.

mod broken_rules;
mod copies;
mod format;
mod read_behind;
mod replicas;
mod running;
mod scrub;
mod simulation;
mod tail;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::disk::LogDisk;
use crate::recovery::{LogEnd, read_log};
use crate::{ChangeKind, LogError, LoggedChange};

/// A table as replay makes it: the higher version of a key wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TableModel(pub(super) BTreeMap<Vec<u8>, (u64, Vec<u8>)>);

impl TableModel {
    pub(super) fn apply(&mut self, change: &LoggedChange<'_>) {
        let found = self.0.get(change.key).map_or(0, |(version, _)| *version);
        match change.kind {
            ChangeKind::Put | ChangeKind::Arrive if change.version > found => {
                self.0.insert(change.key.to_vec(), (change.version, change.value.to_vec()));
            }
            ChangeKind::Delete | ChangeKind::Expire | ChangeKind::Leave if change.version >= found => {
                drop(self.0.remove(change.key));
            }
            ChangeKind::Clear => self.0.retain(|_, (version, _)| *version > change.version),
            ChangeKind::Put
            | ChangeKind::Delete
            | ChangeKind::Expire
            | ChangeKind::Arrive
            | ChangeKind::Leave
            | ChangeKind::MakeTable
            | ChangeKind::DropTable => {}
        }
    }
}

pub(super) fn put<'a>(key: &'a [u8], version: u64, value: &'a [u8]) -> LoggedChange<'a> {
    LoggedChange { kind: ChangeKind::Put, table: 1, version, expires_at_ms: 0, flags: 0, key, value }
}

/// Reads the log of a disk into a model.
pub(super) fn read(disk: &Arc<dyn LogDisk>) -> Result<(TableModel, LogEnd), LogError> {
    let mut model = TableModel::default();
    let end = read_log(disk, &mut |change, _| {
        model.apply(change);
        Ok(())
    })?;
    Ok((model, end))
}
