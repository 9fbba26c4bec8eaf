//! The calls of triggers for changes of a server whose place this one takes, which it has not made: this server's own
//! log is told of these changes, before the slots are its own. So its triggers call for them before they call for its
//! own changes of the same keys, also over restarts, and the server that takes this one's place has them as well.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sandstorm_catalog::Directory;
use sandstorm_log::{ChangeKind, ChangeLog, LoggedChange};

use crate::called_positions::{CalledPosition, CalledPositions, inherited_table};
use crate::copy_coordinator::CopyName;

/// Time until the log is asked again that had no room.
const ROOM_PAUSE: Duration = Duration::from_millis(1);
/// Digits of a server's id that are shown.
const SHOWN_DIGITS: usize = 8;

/// A trigger, and what of a copy is to be called for by it.
struct InheritingTrigger {
    serial: u64,
    told: CalledPosition,
    /// Bytes of these changes.
    bytes: u64,
}

/// Triggers, by serial, for which not all is there, and the reasons.
type MissedCalls = Vec<(u64, String)>;

/// Receives a change of a log, and the position behind its unit.
pub(crate) type BehindChangeVisit<'v> = dyn FnMut(u64, &LoggedChange<'_>) -> Result<(), String> + 'v;

/// Shows the changes of a sealed log behind a position. Returns the position from which on all were shown.
pub(crate) type ReadBehind<'a> = dyn Fn(u64, &mut BehindChangeVisit<'_>) -> Result<u64, String> + 'a;

/// See the head of this file.
pub(crate) struct InheritedCalls<'a> {
    /// Reads the lost server's sealed log.
    pub(crate) read_behind: &'a ReadBehind<'a>,
    pub(crate) name: &'a CopyName,
    /// This server's own.
    pub(crate) log: &'a Arc<ChangeLog>,
    /// Bytes of changes that are taken over, at most: [`crate::limits::INHERITED_CALLS_BYTES`].
    pub(crate) most_bytes: u64,
    /// Whether this server is still to take the place.
    pub(crate) check: &'a dyn Fn() -> Result<(), String>,
}

/// The serials of all tables' triggers.
pub(crate) fn table_triggers(directory: &Directory) -> BTreeSet<u64> {
    let is_of_table = |definition: &str| {
        let known: Result<serde_json::Value, _> = serde_json::from_str(definition);
        known.is_ok_and(|known| known.get("table").is_some_and(serde_json::Value::is_string))
    };
    let snapshot = directory.snapshot();
    let all = snapshot.iter().flat_map(|view| view.triggers.values());
    all.filter(|one| is_of_table(&one.definition)).map(|one| one.serial).collect()
}

/// Whether triggers are called for a kind of change.
fn is_called_for(kind: ChangeKind) -> bool {
    match kind {
        ChangeKind::Put | ChangeKind::Delete | ChangeKind::Clear | ChangeKind::Expire => true,
        ChangeKind::MakeTable | ChangeKind::DropTable | ChangeKind::Arrive | ChangeKind::Leave => false,
    }
}

/// Which triggers are called for changes of a table, by the table's number in the log.
fn by_table(triggers: &[InheritingTrigger]) -> BTreeMap<u64, Vec<usize>> {
    let mut found: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (at, InheritingTrigger { serial, told, .. }) in triggers.iter().enumerate() {
        // What the lost server had inherited itself, too.
        for table in [told.table, inherited_table(*serial, told.table)] {
            found.entry(table).or_default().push(at);
        }
    }
    found
}

impl InheritedCalls<'_> {
    /// Has this server's log tell of what the triggers of these serials have not called for. `called` has the positions
    /// that the part of the copy has which its checkpoint leaves. Returns the triggers for which not all is there, with
    /// the reasons.
    ///
    /// # Errors
    /// One line: this server is not to take the place any more.
    pub(crate) fn take_over(
        &self,
        serials: &BTreeSet<u64>,
        mut called: CalledPositions,
    ) -> Result<MissedCalls, String> {
        if !called.has_all(serials) {
            // One that has had nothing to do for long; or its server has noted none, as earlier versions.
            let all = (self.read_behind)(0, &mut |_, change| {
                called.note(change);
                Ok(())
            });
            if let Err(error) = all {
                tracing::warn!("positions of triggers are missing in the copy of server {}: {error}", self.name.0);
            }
        }
        let new = |(serial, told)| InheritingTrigger { serial, told, bytes: 0 };
        let mut triggers: Vec<InheritingTrigger> = called.of(serials).into_iter().map(new).collect();
        let server = self.name.0.get(..SHOWN_DIGITS).unwrap_or(&self.name.0);
        let lost = |why: String| format!("server {server}, whose place this one has taken, {why}");
        let counted = self.each_change(&mut triggers, &mut |trigger, change| {
            trigger.bytes += change.encoded_bytes() as u64;
            Ok(())
        });
        let from = match counted {
            Ok(from) => from,
            Err(error) => {
                (self.check)()?;
                let why = lost(format!("had calls to make, and what they were for cannot be read: {error}"));
                return Ok(triggers.into_iter().map(|trigger| (trigger.serial, why.clone())).collect());
            }
        };
        let mut missed = Vec::new();
        for InheritingTrigger { serial, told, .. } in triggers.iter().filter(|trigger| trigger.told.position < from) {
            let position = told.position;
            let why =
                format!("had called for what is before position {position} of its log, whose copy begins at {from}");
            missed.push((*serial, lost(why)));
        }
        // Those with little first: one that waits for long takes nothing away from the others.
        triggers.sort_by_key(|trigger| trigger.bytes);
        let mut room = self.most_bytes;
        triggers.retain(|InheritingTrigger { serial, bytes, .. }| {
            let fits = *bytes <= room;
            room -= if fits { *bytes } else { 0 };
            if !fits {
                let mib = bytes >> 20;
                missed.push((*serial, lost(format!("had {mib} MiB of changes to call for, more than are taken over"))));
            }
            fits && *bytes > 0
        });
        if !triggers.is_empty() {
            self.each_change(&mut triggers, &mut |trigger, change| {
                let table = inherited_table(trigger.serial, trigger.told.table);
                self.append(&LoggedChange { table, ..*change })
            })?;
        }
        Ok(missed)
    }

    /// Shows each change that a trigger has not called for. Returns the position from which on all are there.
    fn each_change(
        &self,
        triggers: &mut [InheritingTrigger],
        visit: &mut dyn FnMut(&mut InheritingTrigger, &LoggedChange<'_>) -> Result<(), String>,
    ) -> Result<u64, String> {
        let Some(least) = triggers.iter().map(|trigger| trigger.told.position).min() else { return Ok(0) };
        let by_table = by_table(triggers);
        (self.read_behind)(least, &mut |position, change| {
            let Some(of_table) = by_table.get(&change.table).filter(|_| is_called_for(change.kind)) else {
                return Ok(());
            };
            for at in of_table {
                if let Some(trigger) = triggers.get_mut(*at).filter(|trigger| trigger.told.position < position) {
                    visit(trigger, change)?;
                }
            }
            Ok(())
        })
    }

    /// Appends a change to this server's log, once there is room.
    fn append(&self, change: &LoggedChange<'_>) -> Result<(), String> {
        loop {
            if let Ok(permit) = self.log.admit(change.key.len(), change.value.len()) {
                self.log.append(change, false);
                drop(permit);
                return Ok(());
            }
            (self.check)()?;
            self.log.request(self.log.end());
            std::thread::sleep(ROOM_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use sandstorm_log::replica_suite::SourceLog;
    use sandstorm_log::{LogOptions, LogShipper, LogTail, ReplicaState};

    use super::*;
    use crate::called_positions::position_change;
    use crate::copy_store::CopyStore;
    use crate::replica_messages::{LEASE_MS, ReplicaAnswer, ReplicaAsk, ReplicaHead};

    /// The table of the triggers, by its number in the log, and another one.
    const TABLE: u64 = 1_000;
    const OTHER: u64 = 2_000;
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A server's log, and its copy at another one.
    struct LostServer {
        source: SourceLog,
        shipper: LogShipper,
        copy_store: CopyStore,
        folder: PathBuf,
    }

    impl Drop for LostServer {
        fn drop(&mut self) {
            let _left = std::fs::remove_dir_all(&self.folder);
        }
    }

    fn name() -> CopyName {
        ("a".repeat(40), 7)
    }

    impl LostServer {
        fn new(test: &str) -> LostServer {
            let folder = std::env::temp_dir().join(format!("sandstorm-inherited-{test}-{}", std::process::id()));
            let _left = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder).unwrap();
            let options = LogOptions { segment_bytes: 64 << 10, feed_bytes: 0, ..LogOptions::default() };
            let source = SourceLog::new(options);
            let shipper = LogShipper::begin(&source.log, &ReplicaState::default()).unwrap().unwrap();
            let lost = LostServer { source, shipper, copy_store: CopyStore::new(&folder), folder };
            lost.ask(ReplicaAsk::State { makes: true }, b"");
            lost
        }

        fn ask(&self, ask: ReplicaAsk, pieces: &[u8]) {
            let (owner, copy) = name();
            let head = ReplicaHead { owner, copy, epoch: 1, ask, lease_ms: LEASE_MS };
            let answer = self.copy_store.answer(&head.encode(pieces).unwrap()).unwrap();
            let answer: ReplicaAnswer = serde_json::from_slice(&answer).unwrap();
            answer.read().unwrap();
        }

        /// Writes a change; returns where it ends.
        fn write(&self, change: &LoggedChange<'_>) -> u64 {
            let end = self.source.log.append(change, true);
            assert!(self.source.log.wait(end, PATIENCE));
            end
        }

        fn put(&self, table: u64, number: u64) -> u64 {
            let value = vec![number as u8; 900];
            let delete = LoggedChange::delete(table, number, b"key");
            self.write(&LoggedChange { kind: ChangeKind::Put, value: &value, ..delete })
        }

        fn note(&self, serial: u64, position: u64) -> u64 {
            let told = CalledPosition { table: TABLE, position }.encode();
            self.write(&position_change(&serial.to_le_bytes(), &told))
        }

        fn ship(&mut self) {
            loop {
                let batch = self.shipper.next_batch(true).unwrap();
                if batch.is_empty() {
                    return;
                }
                self.ask(ReplicaAsk::Append, &batch.encode());
                self.shipper.acknowledge();
                if let Some((checkpoint, segment)) = self.shipper.take_trim() {
                    self.ask(ReplicaAsk::Trim { checkpoint, segment }, b"");
                }
            }
        }

        /// Takes over what the triggers of some serials have not called for; returns versions by table, and the reasons
        /// why some is not there.
        fn take_over(&mut self, serials: &[u64], most_bytes: u64) -> Result<(Vec<(u64, u64)>, MissedCalls), String> {
            self.ship();
            self.copy_store.seal(&name()).unwrap();
            let own = SourceLog::new(LogOptions::default());
            let mut called = CalledPositions::default();
            let read = &mut |change: &LoggedChange<'_>| {
                called.note(change);
                Ok(())
            };
            self.copy_store.read(&name(), read).unwrap();
            let (name, log, check) = (&name(), &own.log, &|| Ok(()));
            let read_behind = &|position: u64, visit: &mut BehindChangeVisit<'_>| {
                self.copy_store.read_behind(name, position, visit).map_err(|error| error.to_string())
            };
            let inherited = InheritedCalls { read_behind, name, log, most_bytes, check };
            let missed = inherited.take_over(&serials.iter().copied().collect(), called)?;
            assert!(log.wait(log.end(), PATIENCE));
            let mut found = Vec::new();
            let mut tail = LogTail::at(log, 0).unwrap();
            tail.read(u64::MAX, &mut |_, change| {
                found.push((change.table, change.version));
                true
            })
            .unwrap();
            Ok((found, missed))
        }
    }

    fn of(serial: u64, found: &[(u64, u64)]) -> Vec<u64> {
        let own = inherited_table(serial, TABLE);
        found.iter().filter(|(table, _)| *table == own).map(|(_, version)| *version).collect()
    }

    #[test]
    fn what_each_trigger_has_not_called_for_is_taken_over_in_its_order_and_nothing_else() {
        let mut lost = LostServer::new("order");
        let ends: Vec<u64> = (1..=9).map(|number| lost.put(TABLE, number)).collect();
        lost.put(OTHER, 10);
        lost.note(5, ends[2]);
        lost.note(6, ends[8]);
        lost.note(5, ends[4]);
        // What is no change of a client's, and what the lost server had inherited itself.
        lost.write(&LoggedChange { kind: ChangeKind::Arrive, ..LoggedChange::delete(TABLE, 11, b"key") });
        lost.put(inherited_table(5, TABLE), 12);
        lost.put(inherited_table(5, OTHER), 13);
        lost.write(&LoggedChange::delete(TABLE, 14, b"key"));
        lost.write(&LoggedChange::of_table(ChangeKind::Clear, TABLE, 15, b""));
        // One of which nothing was told, and one that is deleted by now.
        lost.note(7, ends[0]);
        let (found, missed) = lost.take_over(&[5, 6, 8], u64::MAX).unwrap();
        assert_eq!(of(5, &found), [6, 7, 8, 9, 12, 14, 15]);
        assert_eq!(of(6, &found), [14, 15]);
        assert_eq!((found.len(), missed), (9, vec![]));
    }

    #[test]
    fn what_is_not_there_any_more_or_is_too_much_is_told() {
        let mut lost = LostServer::new("missed");
        let first = lost.put(TABLE, 1);
        lost.note(5, first);
        let mut last = first;
        (2..=300).for_each(|number| last = lost.put(TABLE, number));
        lost.ship();
        // Its triggers need this no more, as they have told: one of them tells it too late.
        lost.source.log.retain_from(Some(last));
        lost.source.checkpoint();
        lost.ship();
        lost.note(6, last);
        lost.note(5, first);
        (301..=310).for_each(|number| last = lost.put(TABLE, number));
        let (found, missed) = lost.take_over(&[5, 6], u64::MAX).unwrap();
        let versions = of(5, &found);
        assert!(versions.first() > Some(&2) && versions.last() == Some(&310), "{versions:?}");
        assert!(versions.windows(2).all(|pair| pair[0] + 1 == pair[1]));
        assert_eq!(of(6, &found), (301..=310).collect::<Vec<_>>());
        assert_eq!(missed.len(), 1);
        assert!(missed[0].0 == 5 && missed[0].1.contains("server aaaaaaaa, whose place"), "{missed:?}");

        let mut lost = LostServer::new("much");
        let start = lost.put(TABLE, 1);
        (2..=9).for_each(|number| last = lost.put(TABLE, number));
        lost.note(5, start);
        lost.note(6, last);
        (10..=12).for_each(|number| last = lost.put(TABLE, number));
        let (found, missed) = lost.take_over(&[5, 6], 4_000).unwrap();
        assert_eq!((of(5, &found), of(6, &found)), (vec![], vec![10, 11, 12]), "the one with little is taken over");
        assert!(missed.len() == 1 && missed[0].0 == 5 && missed[0].1.contains("more than"), "{missed:?}");
    }

    #[test]
    fn positions_that_are_before_the_checkpoint_are_found() {
        let mut lost = LostServer::new("positions");
        let first = lost.put(TABLE, 1);
        lost.source.log.retain_from(Some(first));
        lost.note(5, first);
        let last = (2..=200).map(|number| lost.put(TABLE, number)).max();
        lost.ship();
        lost.source.checkpoint();
        lost.put(OTHER, 300);
        let (found, missed) = lost.take_over(&[5], u64::MAX).unwrap();
        assert!(last.is_some() && missed.is_empty(), "{missed:?}");
        assert_eq!(of(5, &found), (2..=200).collect::<Vec<_>>());
    }
}
