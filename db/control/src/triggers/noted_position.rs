//! How far a table's trigger of a cluster has come, as this server's log has last been told. The server that takes this
//! one's place makes the calls from there on, as a restart makes them from what the file says: see
//! `sandstorm_cluster::called_positions`.

use std::sync::Arc;

use super::active::TriggerCounts;
use crate::limits::TRIGGER_NOTE_BYTES;
use sandstorm_cluster::called_positions::{CalledPosition, position_change};
use sandstorm_log::ChangeLog;

/// See the head of this file.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotedPosition {
    serial: u64,
    told: CalledPosition,
    /// What its calls had done.
    counts: TriggerCounts,
    /// The position behind it in the log.
    end: u64,
    /// The position from which a successor makes the calls: that of an earlier word, until all copies have this one.
    kept: u64,
}

impl NotedPosition {
    /// The position from which the log is needed by the server that takes this one's place.
    pub(super) fn needs_log_from(&self) -> u64 {
        self.kept
    }

    /// Tells the log where a trigger is now, and what its calls have done, if that is due: if some have ended, or if
    /// what was told of it would soon be long ago. A log in which nothing happens is told nothing. The copies have the
    /// log up to `copied`.
    pub(super) fn note(
        known: &mut Option<NotedPosition>,
        serial: u64,
        (told, counts): (CalledPosition, TriggerCounts),
        (log, copied): (&Arc<ChangeLog>, u64),
    ) {
        let end = log.end();
        if let Some(known) = known.as_mut().filter(|known| known.end <= copied) {
            known.kept = known.told.position;
        }
        // Each copy is read from its last checkpoint on in any case.
        let checkpoint = end.saturating_sub(log.bytes_since_checkpoint());
        let is_due = known.is_none_or(|known| {
            let is_same = (known.serial, known.told.table) == (serial, told.table);
            let is_other = !is_same || told.position < known.told.position;
            is_other || known.counts != counts || known.end < checkpoint || end - known.end >= TRIGGER_NOTE_BYTES
        });
        let (key, value) = (serial.to_le_bytes(), told.encode());
        let change = position_change(&key, &value);
        if !is_due {
            return;
        }
        // Where there is no room the next look tells it.
        if let Ok(permit) = log.admit(change.key.len(), change.value.len()) {
            let end = log.append(&change, false);
            drop(permit);
            let kept = known.map_or(told.position, |known| known.kept.min(told.position));
            *known = Some(NotedPosition { serial, told, counts, end, kept });
        }
    }
}
