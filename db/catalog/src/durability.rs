//! What a crash may take of a table's records, and the log that keeps them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use sandstorm_log::{ChangeKind, ChangeLog, LogError, LogFolder, LogOptions, LoggedChange, RecoveredLog};
use sandstorm_store::{RecordTable, TableLog};
use serde::{Deserialize, Serialize};

/// What a crash may take of a table's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableDurability {
    /// All of them: they are in memory only.
    #[default]
    None,
    /// The writes of the last 100 ms: they are acknowledged at once.
    Interval,
}

impl TableDurability {
    /// Its name, as the control API has it.
    pub fn name(self) -> &'static str {
        match self {
            TableDurability::None => "none",
            TableDurability::Interval => "interval",
        }
    }

    /// Whether this is the default.
    pub fn is_none(&self) -> bool {
        *self == TableDurability::None
    }
}

/// The log of a server that keeps records. It is made with the first table that needs it.
#[derive(Default)]
pub(super) struct DirectoryLog(Mutex<LogPlace>);

#[derive(Default)]
struct LogPlace {
    log: Option<Arc<ChangeLog>>,
    /// The folder in which it is made when it is needed.
    folder: Option<PathBuf>,
}

impl DirectoryLog {
    /// Has the changes of tables that are made from here on logged.
    pub(super) fn set(&self, log: Arc<ChangeLog>) {
        self.0.lock().log = Some(log);
    }

    /// Sets the folder in which a log is made when it is needed.
    pub(super) fn set_folder(&self, folder: &Path) {
        self.0.lock().folder = Some(folder.to_owned());
    }

    /// The log, if there is one.
    pub(super) fn get(&self) -> Option<Arc<ChangeLog>> {
        self.0.lock().log.clone()
    }

    /// Has a new table's changes logged. Before the folder is known, the tables get their log when it is read.
    ///
    /// # Errors
    /// The log cannot be made.
    pub(super) fn attach(&self, table: &RecordTable, number: u64, name: &str) -> Result<(), LogError> {
        let mut place = self.0.lock();
        if place.log.is_none()
            && let Some(folder) = &place.folder
        {
            let disk = Arc::new(LogFolder::lock(folder)?);
            let log = RecoveredLog::read(disk, LogOptions::default(), &mut |_, _| Ok(()))?.start()?;
            place.log = Some(log);
        }
        if let Some(log) = &place.log {
            log_name(log, number, name);
            table.start_logging(TableLog::new(Arc::clone(log), number));
        }
        Ok(())
    }
}

/// Tells the log a table's name, for people who read it. Without room they see its number.
pub(super) fn log_name(log: &Arc<ChangeLog>, number: u64, name: &str) {
    if let Ok(_permit) = log.admit(name.len(), 0) {
        log.append(&LoggedChange::of_table(ChangeKind::MakeTable, number, 0, name.as_bytes()), false);
    }
}
