//! Changes under several locks, which the log gets as one unit.

use std::cell::RefCell;
use std::sync::Arc;

use sandstorm_log::{ChangeLog, LogPermit, LoggedChange, UnitBuilder};

use crate::limits::RETAINED_UNIT_BYTES;

/// The changes under the stripes that a thread holds.
#[derive(Default)]
pub(crate) struct UnitOfChanges(RefCell<GatheredUnit>);

#[derive(Default)]
struct GatheredUnit {
    log: Option<Arc<ChangeLog>>,
    unit: UnitBuilder,
    permits: Vec<LogPermit>,
}

impl UnitOfChanges {
    /// Adds a change. All tables have the same log.
    pub(crate) fn push(&self, log: &Arc<ChangeLog>, change: &LoggedChange<'_>) {
        let mut gathered = self.0.borrow_mut();
        gathered.unit.push(change);
        if gathered.log.is_none() {
            gathered.log = Some(Arc::clone(log));
        }
    }

    /// Keeps the room for a change until the unit is appended.
    pub(crate) fn keep(&self, permit: LogPermit) {
        self.0.borrow_mut().permits.push(permit);
    }

    /// Appends the unit, if there is a change in it.
    pub(crate) fn append(&self) {
        let mut gathered = self.0.borrow_mut();
        if let Some(log) = gathered.log.take() {
            log.append_unit(&mut gathered.unit, false);
            gathered.unit.clear(RETAINED_UNIT_BYTES);
        }
        gathered.permits.clear();
    }
}
