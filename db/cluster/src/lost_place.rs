//! A server whose place another one has taken: what has waited for its copies is never shown, whatever copies it has
//! later.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandstorm_catalog::Directory;
use sandstorm_log::{ChangeKind, LoggedChange};
use sandstorm_store::GracePeriod;

/// Time between two looks whether all threads have passed a point.
const GRACE_PAUSE: Duration = Duration::from_millis(1);

/// Ends what waits, once nothing runs any more that has looked before whether a slot is this server's. Returns whether
/// that is done.
pub(crate) fn end_loss(directory: &Directory, stop: &AtomicBool) -> bool {
    let Some(log) = directory.change_log() else { return true };
    let snapshot = directory.snapshot();
    let tables: Vec<_> = snapshot.iter().flat_map(|view| view.tables.values().cloned().collect::<Vec<_>>()).collect();
    let mut participant = directory.participant();
    tables.iter().for_each(|entry| entry.table.settle_writers(&participant));
    let grace = GracePeriod::begin(&participant);
    while !grace.is_over() {
        participant.quiescent();
        participant.offline();
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::park_timeout(GRACE_PAUSE);
    }
    participant.offline();
    let logged = tables.iter().find_map(|entry| Some((entry.table.log_number()?, entry.name())));
    let Some((number, name)) = logged else { return true };
    let made = LoggedChange::of_table(ChangeKind::MakeTable, number, 0, name.as_bytes());
    log.lose_copied(&made).is_ok()
}
