//! The log that keeps the records of tables with durability, and the requests for its checkpoints.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};
use sandstorm_log::{ChangeKind, ChangeLog, LogError, LogFolder, LogOptions, LoggedChange, RecoveredLog};
use sandstorm_store::RecordTable;

use super::TableEntry;
use super::scrub_progress::ScrubProgress;
use super::table_durability::TableDurability;

/// Called by the log's thread after the log has got on.
pub type LogProgressHook = Arc<dyn Fn() + Send + Sync>;

/// The log of a server that keeps records. It is made with the first table that needs it.
#[derive(Default)]
pub(super) struct DirectoryLog {
    place: Mutex<LogPlace>,
    /// Locked while a table's durability changes; the tables for which a checkpoint is awaited.
    pub(super) changing: Mutex<Vec<SettlingTable>>,
    pub(super) checkpoints: CheckpointRequests,
    pub(super) scrub: ScrubProgress,
}

/// A table that is logged already as other servers have agreed, which holds once a checkpoint has its records.
pub(super) struct SettlingTable {
    pub(super) entry: Arc<TableEntry>,
    /// Its number in the log.
    pub(super) number: u64,
    /// The number of the request for the checkpoint.
    pub(super) request: u64,
}

#[derive(Default)]
struct LogPlace {
    log: Option<Arc<ChangeLog>>,
    /// The folder in which it is made when it is needed.
    folder: Option<PathBuf>,
    /// Whether what waits for copies does so: in a cluster.
    has_copies: bool,
    /// Called by the log's writing thread when it begins.
    writer_begins: Option<fn()>,
    /// Hooks that are called when the log has progressed.
    hooks: Arc<RwLock<Vec<LogProgressHook>>>,
}

impl LogPlace {
    fn options(&self) -> LogOptions {
        let options = LogOptions::default();
        LogOptions { writer_begins: self.writer_begins.unwrap_or(options.writer_begins), ..options }
    }

    fn connect(&self) {
        if let Some(log) = &self.log {
            if self.has_copies {
                log.wait_for_copies();
            }
            let hooks = Arc::clone(&self.hooks);
            log.on_progress(Box::new(move || hooks.read().iter().for_each(|hook| hook())));
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

    /// Has answers that wait for copies do so, once there is a log.
    pub(super) fn wait_for_copies(&self) {
        self.place.lock().has_copies = true;
    }

    /// Has the log's writing thread call a function when it begins: of a log that is made from here on.
    pub(super) fn on_writer(&self, begins: fn()) {
        self.place.lock().writer_begins = Some(begins);
    }

    /// The options of the log.
    pub(super) fn options(&self) -> LogOptions {
        self.place.lock().options()
    }

    /// Sets the folder in which a log is made when it is needed.
    pub(super) fn set_folder(&self, folder: &Path) {
        self.place.lock().folder = Some(folder.to_owned());
    }

    /// Has `hook` called by the log's thread, once there is a log, beside those that were added before.
    pub(super) fn add_hook(&self, hook: LogProgressHook) {
        self.place.lock().hooks.write().push(hook);
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
            let log = RecoveredLog::read(disk, place.options(), &mut |_, _| Ok(()))?.start()?;
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
    /// Whether one would be of use, for which no caller waits.
    is_suggested: bool,
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

    /// Says that a checkpoint would be of use now: the log has grown at once. One is written if that costs little,
    /// beside what the log has.
    pub fn suggest(&self) {
        self.state.lock().is_suggested = true;
    }

    /// Whether one was suggested since this was asked last.
    pub fn take_suggestion(&self) -> bool {
        std::mem::take(&mut self.state.lock().is_suggested)
    }

    /// Asks for a checkpoint that begins from now on. Returns the request's number.
    pub fn ask(&self) -> u64 {
        let mut state = self.state.lock();
        state.last += 1;
        state.last
    }

    /// The outcome of a request; `None`: it is not served yet.
    pub(super) fn outcome(&self, request: u64) -> Option<Result<(), LogError>> {
        let state = self.state.lock();
        (state.served >= request).then(|| state.error.clone().map_or(Ok(()), Err))
    }

    /// Asks for a checkpoint that begins from now on, and waits until it is on the disk; what became of it. `None`: it
    /// is not there in time.
    pub(super) fn wait(&self, timeout: Duration) -> Option<Result<(), LogError>> {
        let mut state = self.state.lock();
        state.last += 1;
        let (own, until) = (state.last, Instant::now() + timeout);
        while state.served < own {
            if self.served.wait_until(&mut state, until).timed_out() {
                return None;
            }
        }
        Some(state.error.clone().map_or(Ok(()), Err))
    }
}

/// Tells the log a table's name, for people who read it, and its highest version. Returns whether there was room.
pub(super) fn log_name(log: &Arc<ChangeLog>, number: u64, name: &str, version: u64) -> bool {
    let Ok(_permit) = log.admit(name.len(), 0) else { return false };
    log.append(&LoggedChange::of_table(ChangeKind::MakeTable, number, version, name.as_bytes()), false);
    true
}
