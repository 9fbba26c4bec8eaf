//! A server whose place another one has taken: answers that have waited for its copies are never shown, whatever copies
//! it has later.

use std::sync::atomic::AtomicBool;

use sandstorm_catalog::Directory;
use sandstorm_log::{ChangeKind, LoggedChange};

use crate::slot_mover::{all_tables, await_grace};

/// Ends what waits, once nothing runs any more that has looked before whether a slot is this server's. Returns whether
/// that is done.
pub(crate) fn end_loss(directory: &Directory, stop: &AtomicBool) -> bool {
    let Some(log) = directory.change_log() else { return true };
    let tables = all_tables(directory);
    let mut participant = directory.participant();
    tables.iter().for_each(|entry| entry.table.settle_writers(&participant));
    if !await_grace(&mut participant, stop) {
        return false;
    }
    participant.offline();
    let logged = tables.iter().find_map(|entry| Some((entry.table.log_number()?, entry.name())));
    let Some((number, name)) = logged else { return true };
    let made = LoggedChange::of_table(ChangeKind::MakeTable, number, 0, name.as_bytes());
    log.lose_copied(&made).is_ok()
}
