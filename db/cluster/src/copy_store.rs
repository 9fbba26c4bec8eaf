//! The copies of other servers' logs that this server has: in `copies` of its state directory, a folder each.
//!
//! Each answer lets the owner show its records for [`LEASE`]: until then this copy is not read, though it is sealed.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sandstorm_log::disk::LogDisk;
use sandstorm_log::{
    LogError, LogFolder, LogOptions, LogReplica, LoggedChange, RecoveredLog, ReplicaBatch, ReplicaError, ReplicaFolder,
    ReplicaState, boot_time,
};

use crate::copy_coordinator::CopyName;
use crate::gone_copies::{GoneCopy, remove_gone, rename_gone};
use crate::limits::{
    COPIES_FOLDER, COPY_FREE_BYTES, COPY_IDLE, COPY_LOCK_WAIT, COPY_NEW_FREE_BYTES, DAMAGE_NOTES, EARLIER_LEASE, LEASE,
};
use crate::replica_messages::{ReplicaAnswer, ReplicaAsk, ReplicaHead};
use crate::state::is_server_id;

/// A copy that is open.
pub(crate) struct OpenCopy {
    pub(crate) replica: ReplicaFolder,
    /// When the last lease ends that it has given, on the clock of leases.
    leased_until: Duration,
    /// Whether its owner has asked what it has since it was opened: the folder may be an earlier one.
    has_told: bool,
}

/// A copy that is open, as the table of them has it.
pub(crate) struct KnownCopy {
    copy: Arc<Mutex<OpenCopy>>,
    /// When it was asked for last, on the process's clock: a copy that no owner asks for is removed.
    used: Instant,
    /// When all of it was read again last, and was sound.
    pub(crate) checked: Option<Instant>,
}

impl KnownCopy {
    pub(crate) fn copy(&self) -> Arc<Mutex<OpenCopy>> {
        Arc::clone(&self.copy)
    }
}

type KnownCopies = HashMap<CopyName, KnownCopy>;

/// What of a copy is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopyDamage {
    pub(crate) text: String,
    /// Whether it is in padding alone: such a copy has all that it has confirmed. It confirms nothing any more, since
    /// its disk changes bytes; but it is read where there is nothing else.
    pub(crate) is_padding: bool,
}

/// What is known of damage of copies.
#[derive(Default)]
struct KnownDamage {
    /// The copies that are damaged, until they are removed.
    copies: BTreeMap<CopyName, CopyDamage>,
    /// The number of damaged copies found since the start.
    found: u64,
    /// Findings that are not reported yet: the owner of each copy, and what was found.
    notes: Vec<(String, String)>,
}

/// What was heard of the owner of a copy since this process has begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnerContact {
    /// Its questions.
    pub(crate) questions: u64,
    /// Questions that are being answered.
    pub(crate) asking: u32,
    /// Whether it has taken what it was sent last. A copy that was opened again may have less than it had confirmed
    /// before: its owner asks what it has, and sends more only if it misses nothing.
    pub(crate) confirms: bool,
}

/// What a copy is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyAccess {
    /// To be used, and made if there is none.
    Makes,
    /// To be used.
    Uses,
    /// To be sealed and read: also if its padding is damaged.
    Inherits,
    /// To be shown, which keeps none.
    Looks,
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
    /// When all of it was read again last, and was sound.
    pub checked: Option<Instant>,
    /// What of it is damaged: it counts for nothing, and its owner makes another one.
    pub damage: Option<String>,
}

/// See the head of this file.
pub struct CopyStore {
    folder: PathBuf,
    /// The start of this process: an earlier one may have answered just before.
    made: (Duration, Instant),
    pub(crate) open: Mutex<KnownCopies>,
    /// Of each copy here. Never held while a disk is waited for.
    heard: Mutex<HashMap<CopyName, OwnerContact>>,
    /// Locked last of all, and for a moment.
    damage: Mutex<KnownDamage>,
    /// Locked for as long as this lives: another process has other copies.
    _lock: Option<LogFolder>,
    /// What is free on the disk, in tests; `u64::MAX`: what is.
    #[cfg(test)]
    assumed_free: std::sync::atomic::AtomicU64,
    /// By how much each look at that lowers it.
    #[cfg(test)]
    assumed_use: std::sync::atomic::AtomicU64,
}

impl std::fmt::Debug for CopyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyStore").field("folder", &self.folder).finish_non_exhaustive()
    }
}

fn folder_name((owner, copy): &CopyName) -> String {
    format!("{owner}-{copy:016x}")
}

/// What an owner is told of an error of its copy's files.
pub(crate) fn of_files(error: LogError) -> ReplicaError {
    match error {
        LogError::Damaged { file, offset, what } => {
            ReplicaError::Damaged(format!("{file} is damaged at byte {offset}: {what}"))
        }
        error => ReplicaError::Log(error),
    }
}

fn name_of(folder: &str) -> Option<CopyName> {
    let (owner, copy) = folder.split_once('-')?;
    let is_number = copy.len() == 16 && copy.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_server_id(owner) && is_number).then_some((owner.to_owned(), u64::from_str_radix(copy, 16).ok()?))
}

/// Bytes of the files of a copy that cannot be opened.
fn folder_bytes(path: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(path) else { return 0 };
    entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len())).sum()
}

impl CopyStore {
    /// The copies in a state directory.
    pub fn new(state: &Path) -> CopyStore {
        let made = (boot_time(), Instant::now());
        let (open, heard, damage) = (Mutex::default(), Mutex::default(), Mutex::default());
        let folder = state.join(COPIES_FOLDER);
        remove_gone(&folder);
        CopyStore {
            folder,
            made,
            open,
            heard,
            damage,
            _lock: None,
            #[cfg(test)]
            // A test is not decided by how full the machine's disk is.
            assumed_free: std::sync::atomic::AtomicU64::new(1 << 40),
            #[cfg(test)]
            assumed_use: std::sync::atomic::AtomicU64::new(0),
        }
    }

    /// The copies in a state directory, of which no other process has any while this lives.
    ///
    /// # Errors
    /// [`LogError::Locked`]: one has; or the folder cannot be made.
    pub fn lock(state: &Path) -> Result<CopyStore, LogError> {
        let lock = LogFolder::lock(&state.join(COPIES_FOLDER))?;
        Ok(CopyStore { _lock: Some(lock), ..CopyStore::new(state) })
    }

    /// Bytes for which the disk has room; `None`: it does not say that.
    fn free_bytes(&self) -> Option<u64> {
        #[cfg(test)]
        {
            let assumed = self.assumed_free.load(std::sync::atomic::Ordering::Relaxed);
            if assumed != u64::MAX {
                let used = self.assumed_use.load(std::sync::atomic::Ordering::Relaxed);
                self.assumed_free.store(assumed.saturating_sub(used), std::sync::atomic::Ordering::Relaxed);
                return Some(assumed);
            }
        }
        let folder = if self.folder.is_dir() { &self.folder } else { self.folder.parent()? };
        LogFolder::read(folder).free_bytes().ok()
    }

    /// Refuses what would leave less room on the disk: before it is full, so that this server's own log goes on, and
    /// what a copy has stays as it is.
    fn check_room(&self, stays_free: u64) -> Result<(), ReplicaError> {
        match self.free_bytes() {
            Some(free) if free < stays_free => {
                let [free, stays_free] = [free, stays_free].map(|bytes| bytes >> 20);
                Err(ReplicaError::Full(format!("{free} MiB are free, and {stays_free} MiB have to be")))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn path_of(&self, name: &CopyName) -> PathBuf {
        self.folder.join(folder_name(name))
    }

    /// A copy. That it is used is noted under the lock of all: it is not removed then.
    pub(crate) fn copy(
        &self,
        open: &mut KnownCopies,
        name: &CopyName,
        access: CopyAccess,
    ) -> Result<Arc<Mutex<OpenCopy>>, ReplicaError> {
        match access {
            CopyAccess::Looks if open.contains_key(name) => {}
            CopyAccess::Inherits => self.check_confirmed(name)?,
            CopyAccess::Makes | CopyAccess::Uses | CopyAccess::Looks => self.check_damage(name)?,
        }
        if let Some(found) = open.get_mut(name) {
            if access != CopyAccess::Looks {
                found.used = Instant::now();
            }
            return Ok(found.copy());
        }
        let path = self.path_of(name);
        if access != CopyAccess::Makes && !path.is_dir() {
            return Err(ReplicaError::Missing);
        }
        let disk: Arc<dyn LogDisk> = Arc::new(LogFolder::lock(&path)?);
        // Its name, and that of the folder of all: the process that made them may have stopped before they were synced.
        for folder in [self.folder.as_path(), self.folder.parent().unwrap_or(&self.folder)] {
            let synced = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
            synced.map_err(|error| LogError::unusable(&path.display().to_string(), &error.to_string()))?;
        }
        let (begun, made) = self.made;
        let leased_until = begun + EARLIER_LEASE;
        let replica = ReplicaFolder::open(disk).map_err(|error| self.note_if_damaged(name, error))?;
        let used = if access == CopyAccess::Looks { made } else { Instant::now() };
        let copy = Arc::new(Mutex::new(OpenCopy { replica, leased_until, has_told: false }));
        open.insert(name.clone(), KnownCopy { copy: Arc::clone(&copy), used, checked: None });
        Ok(copy)
    }

    /// Refuses a copy that is damaged.
    fn check_damage(&self, name: &CopyName) -> Result<(), ReplicaError> {
        self.damage_of(name).map_or(Ok(()), |text| Err(ReplicaError::Damaged(text)))
    }

    /// Refuses a copy that may lack what it has confirmed.
    fn check_confirmed(&self, name: &CopyName) -> Result<(), ReplicaError> {
        let damage = self.damage.lock();
        let found = damage.copies.get(name).filter(|damage| !damage.is_padding);
        found.map_or(Ok(()), |damage| Err(ReplicaError::Damaged(damage.text.clone())))
    }

    fn damage_of(&self, name: &CopyName) -> Option<String> {
        self.damage.lock().copies.get(name).map(|damage| damage.text.clone())
    }

    pub(crate) fn is_damaged(&self, name: &CopyName) -> bool {
        self.damage_of(name).is_some()
    }

    /// A copy is damaged: from here on it confirms nothing, and is not read unless that is in padding.
    pub(crate) fn note_damage(&self, name: &CopyName, found: CopyDamage) {
        let text = found.text.clone();
        {
            let damage = &mut *self.damage.lock();
            if let Some(known) = damage.copies.get_mut(name) {
                // What may be lost counts for more.
                if known.is_padding {
                    *known = found;
                }
                return;
            }
            damage.copies.insert(name.clone(), found);
            damage.found += 1;
            if damage.notes.len() < DAMAGE_NOTES {
                damage.notes.push((name.0.clone(), text.clone()));
            }
        }
        tracing::error!(owner = %name.0, "a copy that is kept here counts for nothing any more: {text}");
        if let Some(owner) = self.heard.lock().get_mut(name) {
            owner.confirms = false;
        }
    }

    /// An error of a copy's files, which is noted if it is damage.
    fn note_if_damaged(&self, name: &CopyName, error: LogError) -> ReplicaError {
        let error = of_files(error);
        if let ReplicaError::Damaged(text) = &error {
            self.note_damage(name, CopyDamage { text: text.clone(), is_padding: false });
        }
        error
    }

    /// The owners of copies that were found to be damaged since this was asked last, and what was found.
    pub fn take_damage(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.damage.lock().notes)
    }

    /// Copies here that are damaged, and all that were found since the start.
    pub fn damage_counts(&self) -> [u64; 2] {
        let damage = self.damage.lock();
        [damage.copies.len() as u64, damage.found]
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
        let name = (head.owner.clone(), head.copy);
        {
            let mut heard = self.heard.lock();
            let owner = heard.entry(name.clone()).or_default();
            (owner.questions, owner.asking) = (owner.questions + 1, owner.asking + 1);
        }
        let done = self.ask(&head, pieces);
        let mut heard = self.heard.lock();
        if matches!(done, Err(ReplicaError::Missing)) {
            heard.remove(&name);
        } else if let Some(owner) = heard.get_mut(&name) {
            owner.asking = owner.asking.saturating_sub(1);
            // Damage that was found since then holds.
            let is_sound = !self.is_damaged(&name);
            // A full copy keeps what it has confirmed, and says so at once by the next answer.
            let is_refused = done.is_err() && !matches!(done, Err(ReplicaError::Full(_)));
            let confirms = if done.is_ok() { head.ask.confirms() } else { None };
            owner.confirms = is_sound && !is_refused && confirms.unwrap_or(owner.confirms);
        }
        drop(heard);
        serde_json::to_vec(&ReplicaAnswer::from(done)).map_err(|error| error.to_string())
    }

    /// What was heard of the owner of a copy. It waits for no disk.
    pub(crate) fn heard(&self, name: &CopyName) -> OwnerContact {
        self.heard.lock().get(name).copied().unwrap_or_default()
    }

    fn ask(&self, head: &ReplicaHead, pieces: &[u8]) -> Result<Option<ReplicaState>, ReplicaError> {
        let name = (head.owner.clone(), head.copy);
        // Its owner would show records for longer than this copy waits until it is read.
        head.check_lease().map_err(|why| LogError::unusable(&folder_name(&name), &why))?;
        // Only an owner that begins with a copy has it made: a copy that is missing later has lost what it promised.
        let makes = matches!(head.ask, ReplicaAsk::State { makes: true });
        let access = match head.ask {
            ReplicaAsk::State { makes: true } => CopyAccess::Makes,
            // Also one that is damaged, if it is open.
            ReplicaAsk::Remove => CopyAccess::Looks,
            ReplicaAsk::State { .. } | ReplicaAsk::Append | ReplicaAsk::Trim { .. } => CopyAccess::Uses,
        };
        // Behind a disk that hangs no more threads gather than there are questions in this time: they are asked again.
        let busy = || LogError::unusable(&folder_name(&name), "the copy's disk is busy");
        // Asked of the disk before the lock of all copies.
        let room = if makes { self.check_room(COPY_NEW_FREE_BYTES) } else { Ok(()) };
        let copy = {
            let mut open = self.open.try_lock_for(COPY_LOCK_WAIT).ok_or_else(busy)?;
            if !open.contains_key(&name) && !self.path_of(&name).is_dir() {
                room?;
            }
            self.copy(&mut open, &name, access)?
        };
        if head.ask == ReplicaAsk::Remove {
            let gone = self.take_out_for_owner(&name, &copy, head.epoch)?.ok_or_else(busy)?;
            gone.delete(&self.folder);
            return Ok(None);
        }
        let copy = &mut *copy.try_lock_for(COPY_LOCK_WAIT).ok_or_else(busy)?;
        self.check_damage(&name)?;
        copy.has_told |= matches!(head.ask, ReplicaAsk::State { .. });
        if !copy.has_told {
            return Err(ReplicaError::Gap("it was opened again, and has not told what it has".to_owned()));
        }
        let done = match &head.ask {
            ReplicaAsk::State { .. } => copy.replica.state(head.epoch).map(Some),
            ReplicaAsk::Append => {
                let batch = ReplicaBatch::decode(pieces);
                let batch = batch.ok_or_else(|| ReplicaError::Gap("the pieces are damaged".to_owned()))?;
                if !batch.is_empty() {
                    self.check_room(COPY_FREE_BYTES)?;
                }
                copy.replica.append(head.epoch, &batch).map(|()| None)
            }
            ReplicaAsk::Trim { checkpoint, segment } => {
                copy.replica.trim(head.epoch, *checkpoint, *segment).map(|()| None)
            }
            ReplicaAsk::Remove => Ok(None),
        }?;
        copy.leased_until = copy.leased_until.max(boot_time() + LEASE);
        Ok(done)
    }

    /// Seals a copy. Returns how long it is still to be waited before it may be read.
    ///
    /// # Errors
    /// [`ReplicaError`]: it is not there, or not known to be sealed.
    pub(crate) fn seal(&self, name: &CopyName) -> Result<Duration, ReplicaError> {
        let copy = self.copy(&mut self.open.lock(), name, CopyAccess::Inherits)?;
        let copy = &mut *copy.lock();
        self.check_confirmed(name)?;
        copy.replica.seal()?;
        Ok(copy.leased_until.saturating_sub(boot_time()))
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
        let copy = self.copy(&mut self.open.lock(), name, CopyAccess::Inherits)?;
        let path = self.path_of(name).display().to_string();
        let visit = &mut |change: &LoggedChange<'_>, _| visit(change).map_err(|why| LogError::unusable(&path, &why));
        // Sealed, it changes no more: a reader of its state does not wait.
        let disk = copy.lock().replica.disk();
        let read = RecoveredLog::read(disk, LogOptions::default(), visit);
        read.map(drop).map_err(|error| self.note_if_damaged(name, error))
    }

    /// Shows each change of a sealed copy behind a position, with the position behind its unit, also those that its
    /// checkpoint has and that are still there. Returns the position from which on all were shown.
    ///
    /// # Errors
    /// As [`CopyStore::read`].
    pub(crate) fn read_behind(
        &self,
        name: &CopyName,
        position: u64,
        visit: &mut dyn FnMut(u64, &LoggedChange<'_>) -> Result<(), String>,
    ) -> Result<u64, ReplicaError> {
        let copy = self.copy(&mut self.open.lock(), name, CopyAccess::Inherits)?;
        let path = self.path_of(name).display().to_string();
        let disk = copy.lock().replica.disk();
        let visit =
            &mut |end, change: &LoggedChange<'_>| visit(end, change).map_err(|why| LogError::unusable(&path, &why));
        sandstorm_log::read_behind(&disk, position, visit).map_err(of_files)
    }

    /// The copies that are here.
    pub fn list(&self) -> Vec<StoredCopyState> {
        let names: Vec<CopyName> = self.names();
        let shown = |name: CopyName| {
            let (found, checked) = {
                let open = &mut *self.open.lock();
                let found = self.copy(open, &name, CopyAccess::Looks);
                (found, open.get(&name).and_then(|known| known.checked))
            };
            let (bytes, is_sealed) = match found {
                Ok(copy) => {
                    let copy = copy.lock();
                    (copy.replica.bytes(), copy.replica.is_sealed())
                }
                Err(ReplicaError::Damaged(_)) => (folder_bytes(&self.path_of(&name)), false),
                Err(_) => return None,
            };
            let damage = self.damage_of(&name);
            Some(StoredCopyState { owner: name.0, copy: name.1, bytes, is_sealed, checked, damage })
        };
        names.into_iter().filter_map(shown).collect()
    }

    pub(crate) fn names(&self) -> Vec<CopyName> {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return Vec::new() };
        let mut names: Vec<CopyName> = entries.filter_map(|entry| name_of(entry.ok()?.file_name().to_str()?)).collect();
        names.sort();
        names
    }

    /// Removes copies that no generation has and no owner has asked for a while: their owners have others now.
    /// `read_at` is when the generations were read: one that was asked for later may be of one by now.
    pub(crate) fn remove_unneeded(&self, is_needed: impl Fn(&CopyName) -> bool, read_at: Instant) {
        for name in self.names().into_iter().filter(|name| !is_needed(name)) {
            let mut open = self.open.lock();
            let used = open.get(&name).map_or(self.made.1, |known| known.used);
            if read_at.saturating_duration_since(used) < COPY_IDLE {
                continue;
            }
            let gone = self.take_out(&mut open, &name);
            drop(open);
            match gone {
                Ok(gone) => gone.delete(&self.folder),
                Err(error) => tracing::warn!(owner = %name.0, "a copy that is needed no more stays: {error}"),
            }
        }
    }

    /// Takes out a copy whose owner of this epoch does not want it any more. `None`: it is busy.
    fn take_out_for_owner(
        &self,
        name: &CopyName,
        copy: &Arc<Mutex<OpenCopy>>,
        epoch: u64,
    ) -> Result<Option<GoneCopy<Mutex<OpenCopy>>>, ReplicaError> {
        let Some(locked) = copy.try_lock_for(COPY_LOCK_WAIT) else { return Ok(None) };
        // One that is sealed, or that an earlier epoch asks about, stays.
        locked.replica.may_be_removed(epoch)?;
        // Nothing waits for a copy under the lock of all, so that lock may be waited for under that of a copy.
        let Some(mut open) = self.open.try_lock_for(COPY_LOCK_WAIT) else { return Ok(None) };
        match open.get(name) {
            Some(known) if Arc::ptr_eq(&known.copy, copy) => self.take_out(&mut open, name).map(Some),
            // It was removed meanwhile, and maybe another one made.
            _ => Err(ReplicaError::Missing),
        }
    }

    /// Takes a copy from among those that are here: another one of its name may be made from then on. Its folder gets
    /// another name, as half of one would be opened as a damaged copy. If that fails the copy stays, with what is known
    /// of its damage.
    fn take_out(&self, open: &mut KnownCopies, name: &CopyName) -> Result<GoneCopy<Mutex<OpenCopy>>, ReplicaError> {
        let failed = |error: std::io::Error| LogError::unusable(&folder_name(name), &error.to_string());
        let folder = rename_gone(&self.folder, &folder_name(name)).map_err(failed)?;
        let known = open.remove(name);
        self.heard.lock().remove(name);
        self.damage.lock().copies.remove(name);
        Ok(GoneCopy::new(&name.0, folder, known.map(|known| known.copy)))
    }
}

#[cfg(test)]
impl CopyStore {
    /// Puts another folder in the place of a copy's, as a process that has ended and begun again finds it.
    pub(crate) fn put_back(&self, name: &CopyName, from: &Path) {
        let mut open = self.open.lock();
        open.remove(name);
        self.heard.lock().remove(name);
        self.damage.lock().copies.remove(name);
        let path = self.path_of(name);
        std::fs::remove_dir_all(&path).unwrap();
        std::fs::rename(from, path).unwrap();
    }

    /// Sets what is free on the disk.
    pub(crate) fn assume_free(&self, bytes: u64) {
        self.assume_use(bytes, 0);
    }

    /// Sets what is free on the disk, and how much less there is after each look at it.
    pub(crate) fn assume_use(&self, bytes: u64, each: u64) {
        self.assumed_use.store(each, std::sync::atomic::Ordering::Relaxed);
        self.assumed_free.store(bytes, std::sync::atomic::Ordering::Relaxed);
    }

    /// Has a copy opened anew when it is used next.
    pub(crate) fn close(&self, name: &CopyName) {
        self.open.lock().remove(name);
    }

    /// The folder of a copy.
    pub(crate) fn folder_of(&self, name: &CopyName) -> PathBuf {
        self.path_of(name)
    }
}

#[cfg(test)]
pub(crate) mod tests;
