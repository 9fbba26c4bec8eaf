//! What a crash may take of a table's records, and the log that keeps them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sandstorm_log::limits::STALL_AFTER;
use sandstorm_log::{ChangeKind, ChangeLog, LogError, LogFolder, LogOptions, LoggedChange, RecoveredLog};
use sandstorm_store::{RecordTable, TableLogging};
use serde::{Deserialize, Serialize};

use super::directory_state::ChangeEffect;
use super::error::{DirectoryError, unknown_table};
use super::tenant_ref::TenantRef;
use super::{Directory, TableEntry};
use crate::limits::CHANGE_DURABILITY_MOST;

/// What a crash may take of a table's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableDurability {
    /// All of them: they are in memory only.
    #[default]
    None,
    /// The writes of the last 100 ms: they are acknowledged at once.
    Interval,
    /// Nothing that was acknowledged or shown: answers wait for the disk.
    Disk,
}

impl TableDurability {
    const ALL: [TableDurability; 3] = [TableDurability::None, TableDurability::Interval, TableDurability::Disk];

    /// Its name, as the control API has it.
    pub fn name(self) -> &'static str {
        match self {
            TableDurability::None => "none",
            TableDurability::Interval => "interval",
            TableDurability::Disk => "disk",
        }
    }

    /// Whether this is the default.
    pub fn is_none(&self) -> bool {
        *self == TableDurability::None
    }

    /// What it means for the table's changes.
    pub(super) fn logging(self) -> TableLogging {
        match self {
            TableDurability::None => TableLogging::Off,
            TableDurability::Interval => TableLogging::AtOnce,
            TableDurability::Disk => TableLogging::Awaited,
        }
    }
}

/// The durability of a table, and its number in the log (0: none); both may change while it is used.
#[derive(Debug)]
pub(super) struct CurrentDurability {
    durability: AtomicU8,
    number: AtomicU64,
}

impl CurrentDurability {
    pub(super) fn new(durability: TableDurability, number: u64) -> CurrentDurability {
        CurrentDurability { durability: AtomicU8::new(durability as u8), number: AtomicU64::new(number) }
    }

    pub(super) fn get(&self) -> TableDurability {
        let index = usize::from(self.durability.load(Relaxed));
        TableDurability::ALL.get(index).copied().unwrap_or_default()
    }

    pub(super) fn number(&self) -> u64 {
        self.number.load(Relaxed)
    }

    /// Under the directory's lock for changes.
    pub(super) fn set(&self, durability: TableDurability, number: u64) {
        self.number.store(number, Relaxed);
        self.durability.store(durability as u8, Relaxed);
    }
}

/// Called by the log's thread after the log has got on.
pub type LogProgressHook = Arc<dyn Fn() + Send + Sync>;

/// The log of a server that keeps records. It is made with the first table that needs it.
#[derive(Default)]
pub(super) struct DirectoryLog {
    place: Mutex<LogPlace>,
    /// Held while a table's durability changes.
    pub(super) changing: Mutex<()>,
    pub(super) checkpoints: CheckpointRequests,
}

#[derive(Default)]
struct LogPlace {
    log: Option<Arc<ChangeLog>>,
    /// The folder in which it is made when it is needed.
    folder: Option<PathBuf>,
    hook: Option<LogProgressHook>,
}

impl LogPlace {
    fn connect(&self) {
        if let (Some(log), Some(hook)) = (&self.log, self.hook.clone()) {
            log.on_progress(Box::new(move || hook()));
        }
    }
}

impl DirectoryLog {
    /// Has the changes of tables that are made from here on logged.
    pub(super) fn set(&self, log: Arc<ChangeLog>) {
        let mut place = self.place.lock();
        place.log = Some(log);
        place.connect();
    }

    /// Sets the folder in which a log is made when it is needed.
    pub(super) fn set_folder(&self, folder: &Path) {
        self.place.lock().folder = Some(folder.to_owned());
    }

    /// Has `hook` called by the log's thread, once there is a log.
    pub(super) fn set_hook(&self, hook: LogProgressHook) {
        let mut place = self.place.lock();
        place.hook = Some(hook);
        place.connect();
    }

    /// The log, if there is one.
    pub(super) fn get(&self) -> Option<Arc<ChangeLog>> {
        self.place.lock().log.clone()
    }

    /// The log, which is made if there is none and its folder is known.
    ///
    /// # Errors
    /// The log cannot be made.
    pub(super) fn get_or_make(&self) -> Result<Option<Arc<ChangeLog>>, LogError> {
        let mut place = self.place.lock();
        if place.log.is_none()
            && let Some(folder) = &place.folder
        {
            let disk = Arc::new(LogFolder::lock(folder)?);
            let log = RecoveredLog::read(disk, LogOptions::default(), &mut |_, _| Ok(()))?.start()?;
            place.log = Some(log);
            place.connect();
        }
        Ok(place.log.clone())
    }

    /// Has a new table's changes logged. Before the folder is known, the tables get their log when it is read.
    ///
    /// # Errors
    /// The log cannot be made.
    pub(super) fn attach(
        &self,
        table: &RecordTable,
        (number, name): (u64, &str),
        durability: TableDurability,
    ) -> Result<(), LogError> {
        if let Some(log) = self.get_or_make()? {
            log_name(&log, number, name, 0);
            table.set_logging(&log, number, durability.logging());
        }
        Ok(())
    }
}

/// Requests for a checkpoint, which the checkpointer's thread serves.
#[derive(Default)]
pub struct CheckpointRequests {
    state: Mutex<RequestState>,
    served: Condvar,
}

#[derive(Default)]
struct RequestState {
    /// The number of the last request.
    last: u64,
    /// The number up to which they are served, and the last one's error.
    served: u64,
    error: Option<LogError>,
}

impl CheckpointRequests {
    /// The number of the last request that is not served yet.
    pub fn pending(&self) -> Option<u64> {
        let state = self.state.lock();
        (state.last > state.served).then_some(state.last)
    }

    /// Notes that the requests up to one are served by a checkpoint that began after them, or that it failed.
    pub fn serve(&self, request: u64, error: Option<LogError>) {
        let mut state = self.state.lock();
        (state.served, state.error) = (request, error);
        self.served.notify_all();
    }

    /// Asks for a checkpoint that begins from now on, and waits until it is on the disk.
    ///
    /// # Errors
    /// The checkpoint's, or that there was none in time.
    fn wait(&self, timeout: Duration) -> Result<(), LogError> {
        let mut state = self.state.lock();
        state.last += 1;
        let (own, until) = (state.last, Instant::now() + timeout);
        while state.served < own {
            if self.served.wait_until(&mut state, until).timed_out() {
                return Err(LogError::unusable("log", "no checkpoint was written in time"));
            }
        }
        state.error.clone().map_or(Ok(()), Err)
    }
}

impl Directory {
    /// Has `hook` called by the log's thread after each of its writes, once there is a log.
    pub fn on_log_progress(&self, hook: LogProgressHook) {
        self.log.set_hook(hook);
    }

    /// Waits until the log is on the disk up to a position that a table of this directory has given.
    ///
    /// # Errors
    /// The log's disk has failed, or takes too long.
    pub fn wait_for_disk(&self, position: u64) -> Result<(), DirectoryError> {
        let is_there = self.log.get().is_none_or(|log| {
            log.request(position);
            log.wait(position, STALL_AFTER)
        });
        let error = || DirectoryError::JournalUnavailable("the log's disk has failed, or stalls".to_owned());
        if is_there { Ok(()) } else { Err(error()) }
    }

    /// The requests for checkpoints.
    pub fn checkpoint_requests(&self) -> &CheckpointRequests {
        &self.log.checkpoints
    }

    /// Changes what a crash may take of a table's records, while the table is used. Returns once it holds: for a table
    /// that was in memory only, once a checkpoint of the log has its records. Before that, and if the server stops
    /// meanwhile, its records are in memory only.
    ///
    /// # Errors
    /// No such tenant or table; the server keeps nothing; the log, or the journal, cannot be written.
    pub fn set_durability<'a>(
        &self,
        tenant: impl Into<TenantRef<'a>>,
        table: &str,
        durability: TableDurability,
    ) -> Result<Arc<TableEntry>, DirectoryError> {
        let tenant = tenant.into();
        let _one_at_a_time = self.log.changing.lock();
        let snapshot = self.snapshot();
        let view = snapshot.find(tenant)?;
        let entry = Arc::clone(view.table_by_name(table).ok_or_else(|| unknown_table(view, table))?);
        let before = entry.durability();
        if before == durability {
            return Ok(entry);
        }
        if !durability.is_none() && !self.options().can_keep_records {
            return Err(DirectoryError::KeepsNothing(table.to_owned()));
        }
        let unavailable = |error: LogError| DirectoryError::JournalUnavailable(error.to_string());
        let Some(log) = self.log.get_or_make().map_err(unavailable)? else {
            // The server has not read its log yet: the table gets it then.
            return Err(unavailable(LogError::unusable("log", "the server has not read it yet")));
        };
        if before.is_none() {
            let number = sandstorm_log::new_table_number();
            // Nobody waits for the disk as long as it does not hold.
            entry.table.set_logging(&log, number, TableLogging::AtOnce);
            let kept = self.log.checkpoints.wait(CHANGE_DURABILITY_MOST).map_err(unavailable);
            let done = kept.and_then(|()| self.record_durability(tenant, &entry, (durability, number)));
            if done.is_err() {
                entry.table.set_logging(&log, number, TableLogging::Off);
                return done.map(|()| entry);
            }
        }
        let number = if durability.is_none() { 0 } else { entry.durability.number() };
        if durability == TableDurability::Disk {
            // What was shown until now is on the disk before the promise is made.
            entry.table.set_logging(&log, number, TableLogging::Awaited);
            entry.table.settle(&self.epochs.register(), b"");
            if !log.wait(log.end(), CHANGE_DURABILITY_MOST) {
                entry.table.set_logging(&log, number, entry.durability().logging());
                let why = log.failure().cloned();
                return Err(unavailable(why.unwrap_or_else(|| LogError::unusable("log", "its disk stalls"))));
            }
        }
        if !before.is_none()
            && let Err(error) = self.record_durability(tenant, &entry, (durability, number))
        {
            entry.table.set_logging(&log, entry.durability.number(), before.logging());
            return Err(error);
        }
        entry.table.set_logging(&log, number, durability.logging());
        Ok(entry)
    }

    /// Writes a table's durability to the journal, and shows it.
    fn record_durability(
        &self,
        tenant: TenantRef<'_>,
        entry: &Arc<TableEntry>,
        (durability, number): (TableDurability, u64),
    ) -> Result<(), DirectoryError> {
        self.change_view(tenant, |next, view| {
            if !view.tables.get(&entry.id).is_some_and(|now| Arc::ptr_eq(now, entry)) {
                return Err(unknown_table(view, &entry.name));
            }
            view.durability.insert(entry.id, (durability, number));
            next.effects.push(ChangeEffect::Durability(Arc::clone(entry), durability, number));
            Ok(())
        })
    }
}

/// Tells the log a table's name, for people who read it, and its highest version. Returns whether there was room.
pub(super) fn log_name(log: &Arc<ChangeLog>, number: u64, name: &str, version: u64) -> bool {
    let Ok(_permit) = log.admit(name.len(), 0) else { return false };
    log.append(&LoggedChange::of_table(ChangeKind::MakeTable, number, version, name.as_bytes()), false);
    true
}
