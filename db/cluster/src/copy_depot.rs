//! The copies of other servers' logs that this server has: in `copies` of its state directory, a folder each.
//!
//! Each answer lets the owner show its records for [`LEASE`]: until then this copy is not read, though it is sealed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sandstorm_log::disk::LogDisk;
use sandstorm_log::{
    LogError, LogFolder, LogOptions, LogReplica, LoggedChange, RecoveredLog, ReplicaBatch, ReplicaError, ReplicaFolder,
    ReplicaState, boot_time,
};

use crate::copy_desk::CopyName;
use crate::limits::{COPY_IDLE, LEASE};
use crate::replica_messages::{ReplicaAnswer, ReplicaAsk, ReplicaHead};
use crate::state::is_server_id;

/// The folder in the state directory.
pub const COPIES_FOLDER: &str = "copies";

/// A copy that is open.
struct OpenCopy {
    replica: ReplicaFolder,
    /// When it has answered last, on the clock of leases.
    granted: Duration,
    /// The same on the process's clock, for what is to be removed.
    used: Instant,
}

/// A copy, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCopyState {
    /// The id of the server whose log it is.
    pub owner: String,
    /// Its number.
    pub copy: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Whether it is sealed.
    pub is_sealed: bool,
}

/// See the head of this file.
pub struct CopyDepot {
    folder: PathBuf,
    /// The start of this process: an earlier one may have answered just before.
    made: (Duration, Instant),
    open: Mutex<HashMap<CopyName, Arc<Mutex<OpenCopy>>>>,
}

impl std::fmt::Debug for CopyDepot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyDepot").field("folder", &self.folder).finish_non_exhaustive()
    }
}

fn folder_name((owner, copy): &CopyName) -> String {
    format!("{owner}-{copy:016x}")
}

fn name_of(folder: &str) -> Option<CopyName> {
    let (owner, copy) = folder.split_once('-')?;
    let is_number = copy.len() == 16 && copy.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_server_id(owner) && is_number).then_some((owner.to_owned(), u64::from_str_radix(copy, 16).ok()?))
}

impl CopyDepot {
    /// The copies in a state directory.
    pub fn new(state: &Path) -> CopyDepot {
        let made = (boot_time(), Instant::now());
        CopyDepot { folder: state.join(COPIES_FOLDER), made, open: Mutex::default() }
    }

    fn path_of(&self, name: &CopyName) -> PathBuf {
        self.folder.join(folder_name(name))
    }

    /// A copy, which is made if there is none and `makes`.
    fn copy(&self, name: &CopyName, makes: bool) -> Result<Arc<Mutex<OpenCopy>>, ReplicaError> {
        let mut open = self.open.lock();
        if let Some(found) = open.get(name) {
            return Ok(Arc::clone(found));
        }
        let path = self.path_of(name);
        let is_there = path.is_dir();
        if !is_there && !makes {
            return Err(ReplicaError::Gap("it is not there".to_owned()));
        }
        let disk: Arc<dyn LogDisk> = Arc::new(LogFolder::lock(&path)?);
        if !is_there {
            // Its name, and that of the folder of all.
            let synced = [self.folder.as_path(), self.folder.parent().unwrap_or(&self.folder)].into_iter();
            let synced = synced.map(|folder| std::fs::File::open(folder).and_then(|folder| folder.sync_all()));
            synced
                .collect::<Result<(), _>>()
                .map_err(|error| LogError::unusable(&path.display().to_string(), &error.to_string()))?;
        }
        let (granted, used) = self.made;
        let replica = ReplicaFolder::open(disk)?;
        let used = if is_there { used } else { Instant::now() };
        let opened = Arc::new(Mutex::new(OpenCopy { replica, granted, used }));
        open.insert(name.clone(), Arc::clone(&opened));
        Ok(opened)
    }

    /// Answers what the owner of a log asks of a copy here.
    ///
    /// # Errors
    /// One line: it is no question.
    pub fn answer(&self, question: &[u8]) -> Result<Vec<u8>, String> {
        let (head, pieces) = ReplicaHead::decode(question)?;
        if !is_server_id(&head.owner) {
            return Err("the question about a copy names no server".to_owned());
        }
        let answer = ReplicaAnswer::from(self.ask(&head, pieces));
        serde_json::to_vec(&answer).map_err(|error| error.to_string())
    }

    fn ask(&self, head: &ReplicaHead, pieces: &[u8]) -> Result<Option<ReplicaState>, ReplicaError> {
        let name = (head.owner.clone(), head.copy);
        // Who begins with it asks for its state first.
        let copy = self.copy(&name, head.ask == ReplicaAsk::State)?;
        let copy = &mut *copy.lock();
        copy.used = Instant::now();
        let done = match &head.ask {
            ReplicaAsk::State => copy.replica.state(head.epoch).map(Some),
            ReplicaAsk::Append => {
                let batch = ReplicaBatch::decode(pieces);
                let batch = batch.ok_or_else(|| ReplicaError::Gap("the pieces are damaged".to_owned()))?;
                copy.replica.append(head.epoch, &batch).map(|()| None)
            }
            ReplicaAsk::Trim { checkpoint, segment } => {
                copy.replica.trim(head.epoch, *checkpoint, *segment).map(|()| None)
            }
        }?;
        copy.granted = boot_time();
        Ok(done)
    }

    /// Seals a copy. Returns how long it is still to be waited before it may be read.
    ///
    /// # Errors
    /// [`ReplicaError`]: it is not there, or not known to be sealed.
    pub(crate) fn seal(&self, name: &CopyName) -> Result<Duration, ReplicaError> {
        let copy = self.copy(name, false)?;
        let copy = &mut *copy.lock();
        copy.replica.seal()?;
        Ok((copy.granted + LEASE).saturating_sub(boot_time()))
    }

    /// Shows each change of a sealed copy, in an order in which they may be made.
    ///
    /// # Errors
    /// [`ReplicaError`]: damage, among others; or what `visit` returns.
    pub(crate) fn read(
        &self,
        name: &CopyName,
        visit: &mut dyn FnMut(&LoggedChange<'_>) -> Result<(), String>,
    ) -> Result<(), ReplicaError> {
        let copy = self.copy(name, false)?;
        let path = self.path_of(name).display().to_string();
        let visit = &mut |change: &LoggedChange<'_>, _| visit(change).map_err(|why| LogError::unusable(&path, &why));
        // Sealed, it changes no more: whoever wants to know of it does not wait.
        let disk = copy.lock().replica.disk();
        RecoveredLog::read(disk, LogOptions::default(), visit)?;
        Ok(())
    }

    /// The copies that are here.
    pub fn list(&self) -> Vec<StoredCopyState> {
        let names: Vec<CopyName> = self.names();
        let shown = |name: CopyName| {
            let copy = self.copy(&name, false).ok()?;
            let copy = copy.lock();
            let (bytes, is_sealed) = (copy.replica.bytes(), copy.replica.is_sealed());
            Some(StoredCopyState { owner: name.0, copy: name.1, bytes, is_sealed })
        };
        names.into_iter().filter_map(shown).collect()
    }

    fn names(&self) -> Vec<CopyName> {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return Vec::new() };
        let mut names: Vec<CopyName> = entries.filter_map(|entry| name_of(entry.ok()?.file_name().to_str()?)).collect();
        names.sort();
        names
    }

    /// Removes copies that no generation has, and that nobody has asked for a while: their owners have others now.
    pub(crate) fn remove_unneeded(&self, is_needed: impl Fn(&CopyName) -> bool) {
        for name in self.names().into_iter().filter(|name| !is_needed(name)) {
            let mut open = self.open.lock();
            let used = open.get(&name).map_or(self.made.1, |copy| copy.lock().used);
            if used.elapsed() < COPY_IDLE {
                continue;
            }
            open.remove(&name);
            match std::fs::remove_dir_all(self.path_of(&name)) {
                Ok(()) => tracing::info!(owner = %name.0, "a copy that is needed no more was removed"),
                Err(error) => tracing::warn!(owner = %name.0, "a copy that is needed no more stays: {error}"),
            }
        }
    }
}
