//! Changes under several locks, which the log gets as one unit.

use std::cell::RefCell;
use std::sync::Arc;

use sandstorm_log::{ChangeLog, LogPermit, LogRefusal, LoggedChange, UnitBuilder, single_unit_bytes};

use crate::broken_rules::{LogRule, is_broken};
use crate::change_positions::{ChangePositions, HashPart};
use crate::limits::RETAINED_UNIT_BYTES;
use crate::shown_position::ShownPosition;

/// The changes under the stripes that a thread holds.
#[derive(Default)]
pub(crate) struct UnitOfChanges(RefCell<GatheredUnit>);

#[derive(Default)]
struct GatheredUnit {
    log: Option<Arc<ChangeLog>>,
    unit: UnitBuilder,
    permits: Vec<LogPermit>,
    /// Bytes that were reserved for changes to come.
    reserved_bytes: u64,
    /// The changes whose readers wait until the unit is in the log.
    unknown: Vec<(Arc<ChangePositions>, HashPart)>,
    /// Whether one of their tables has its changes awaited, and whether they wait for copies.
    awaited: Option<bool>,
}

impl UnitOfChanges {
    /// Reserves room for changes to come, before the first one is made: the unit is not refused in its middle.
    pub(crate) fn reserve(&self, log: &Arc<ChangeLog>, bytes: u64) -> Result<(), LogRefusal> {
        let permit = log.admit_bytes(bytes)?;
        let mut gathered = self.0.borrow_mut();
        gathered.permits.push(permit);
        gathered.reserved_bytes += bytes;
        Ok(())
    }

    /// Takes room for a change from what was reserved; returns whether there was enough.
    pub(crate) fn take_reserved(&self, key_bytes: usize, value_bytes: usize) -> bool {
        let mut gathered = self.0.borrow_mut();
        let left = gathered.reserved_bytes.checked_sub(single_unit_bytes(key_bytes, value_bytes));
        left.map(|left| gathered.reserved_bytes = left).is_some()
    }

    /// Adds a change that is about to be published. All tables have the same log. `awaited`: its table has its changes
    /// awaited, and whether they wait for copies.
    pub(crate) fn push(
        &self,
        log: &Arc<ChangeLog>,
        change: &LoggedChange<'_>,
        of: (&Arc<ChangePositions>, HashPart),
        awaited: Option<bool>,
    ) {
        let mut gathered = self.0.borrow_mut();
        gathered.unit.push(change);
        gathered.unknown.push((Arc::clone(of.0), of.1));
        gathered.awaited = gathered.awaited.max(awaited);
        if gathered.log.is_none() {
            gathered.log = Some(Arc::clone(log));
        }
    }

    /// Keeps the room for a change until the unit is appended.
    pub(crate) fn keep(&self, permit: LogPermit) {
        self.0.borrow_mut().permits.push(permit);
    }

    /// Appends the unit, if there is a change in it.
    pub(crate) fn append(&self, shown: &ShownPosition) {
        let mut gathered = self.0.borrow_mut();
        if let Some(log) = gathered.log.take() {
            let position = log.append_unit(&mut gathered.unit, false);
            gathered.unit.clear(RETAINED_UNIT_BYTES);
            gathered.unknown.drain(..).for_each(|(positions, part)| positions.end_unknown(part, position));
            gathered.unknown.shrink_to(RETAINED_UNIT_BYTES / size_of::<(Arc<ChangePositions>, HashPart)>());
            if let Some(is_copied) = gathered.awaited.take()
                && !is_broken(LogRule::UnitsAreNoted)
            {
                shown.raise(if is_copied { log.copied_position(position) } else { position });
            }
        }
        gathered.permits.clear();
        gathered.reserved_bytes = 0;
    }
}
