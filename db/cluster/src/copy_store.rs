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
use crate::limits::{COPY_IDLE, COPY_LOCK_WAIT, DAMAGE_NOTES, EARLIER_LEASE, LEASE};
use crate::replica_messages::{ReplicaAnswer, ReplicaAsk, ReplicaHead};
use crate::state::is_server_id;

/// The folder in the state directory.
pub const COPIES_FOLDER: &str = "copies";

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

/// What is known of damage of copies.
#[derive(Default)]
struct KnownDamage {
    /// The copies that are damaged, until they are removed.
    copies: BTreeMap<CopyName, String>,
    /// Those that were found since the start.
    found: u64,
    /// The owners of those of which nobody was told yet, and what was found.
    notes: Vec<(String, String)>,
}

/// What was heard of the owner of a copy since this process has begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnerContact {
    /// Its questions.
    pub(crate) questions: u64,
    /// Those that are being answered.
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
        CopyStore { folder: state.join(COPIES_FOLDER), made, open, heard, damage }
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
        if access != CopyAccess::Looks || !open.contains_key(name) {
            self.check_damage(name)?;
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

    fn damage_of(&self, name: &CopyName) -> Option<String> {
        self.damage.lock().copies.get(name).cloned()
    }

    pub(crate) fn is_damaged(&self, name: &CopyName) -> bool {
        self.damage_of(name).is_some()
    }

    /// A copy is damaged: from here on it confirms nothing, and is not read.
    pub(crate) fn note_damage(&self, name: &CopyName, text: &str) {
        {
            let damage = &mut *self.damage.lock();
            if damage.copies.insert(name.clone(), text.to_owned()).is_some() {
                return;
            }
            damage.found += 1;
            if damage.notes.len() < DAMAGE_NOTES {
                damage.notes.push((name.0.clone(), text.to_owned()));
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
            self.note_damage(name, text);
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
            owner.confirms = is_sound && done.is_ok() && head.ask.confirms().unwrap_or(owner.confirms);
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
        // Only who begins with it has it made: one that is missed later has lost what it has promised.
        let makes = matches!(head.ask, ReplicaAsk::State { makes: true });
        let access = if makes { CopyAccess::Makes } else { CopyAccess::Uses };
        // Behind a disk that hangs no more threads gather than there are questions in this time: they are asked again.
        let busy = || LogError::unusable(&folder_name(&name), "the copy's disk is busy");
        let copy = {
            let mut open = self.open.try_lock_for(COPY_LOCK_WAIT).ok_or_else(busy)?;
            self.copy(&mut open, &name, access)?
        };
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
                copy.replica.append(head.epoch, &batch).map(|()| None)
            }
            ReplicaAsk::Trim { checkpoint, segment } => {
                copy.replica.trim(head.epoch, *checkpoint, *segment).map(|()| None)
            }
        }?;
        copy.leased_until = copy.leased_until.max(boot_time() + LEASE);
        Ok(done)
    }

    /// Seals a copy. Returns how long it is still to be waited before it may be read.
    ///
    /// # Errors
    /// [`ReplicaError`]: it is not there, or not known to be sealed.
    pub(crate) fn seal(&self, name: &CopyName) -> Result<Duration, ReplicaError> {
        let copy = self.copy(&mut self.open.lock(), name, CopyAccess::Uses)?;
        let copy = &mut *copy.lock();
        self.check_damage(name)?;
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
        let copy = self.copy(&mut self.open.lock(), name, CopyAccess::Uses)?;
        let path = self.path_of(name).display().to_string();
        let visit = &mut |change: &LoggedChange<'_>, _| visit(change).map_err(|why| LogError::unusable(&path, &why));
        // Sealed, it changes no more: a reader of its state does not wait.
        let disk = copy.lock().replica.disk();
        let read = RecoveredLog::read(disk, LogOptions::default(), visit);
        read.map(drop).map_err(|error| self.note_if_damaged(name, error))
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
            open.remove(&name);
            self.heard.lock().remove(&name);
            self.damage.lock().copies.remove(&name);
            match std::fs::remove_dir_all(self.path_of(&name)) {
                Ok(()) => tracing::info!(owner = %name.0, "a copy that is needed no more was removed"),
                Err(error) => tracing::warn!(owner = %name.0, "a copy that is needed no more stays: {error}"),
            }
        }
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
mod tests {
    use super::*;
    use crate::replica_messages::LEASE_MS;

    fn copy_store(name: &str) -> (PathBuf, CopyStore, ReplicaHead) {
        let folder = std::env::temp_dir().join(format!("sandstorm-copy_store-{name}-{}", std::process::id()));
        let _left = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let ask = ReplicaAsk::State { makes: true };
        let head = ReplicaHead { owner: "a".repeat(40), copy: 7, epoch: 1, ask, lease_ms: LEASE_MS };
        (folder.clone(), CopyStore::new(&folder), head)
    }

    #[test]
    fn a_copy_that_is_missed_is_not_made_again() {
        let (folder, copy_store, head) = copy_store("missed");
        let uses = ReplicaHead { ask: ReplicaAsk::State { makes: false }, ..head.clone() };
        let appends = ReplicaHead { ask: ReplicaAsk::Append, ..head.clone() };
        assert_eq!(copy_store.ask(&uses, b""), Err(ReplicaError::Missing));
        assert_eq!(copy_store.ask(&appends, b""), Err(ReplicaError::Missing));
        assert!(copy_store.ask(&head, b"").is_ok() && copy_store.ask(&uses, b"").is_ok());
        assert_eq!(copy_store.ask(&appends, &ReplicaBatch::default().encode()), Ok(None));
        let name = (head.owner.clone(), head.copy);
        copy_store.seal(&name).unwrap();
        // What was asked for lately stays, also where it is looked at only from then on.
        copy_store.remove_unneeded(|_| false, Instant::now());
        assert_eq!(copy_store.list().len(), 1);
        copy_store.remove_unneeded(|_| true, Instant::now() + COPY_IDLE);
        assert_eq!(copy_store.list().len(), 1);
        copy_store.remove_unneeded(|_| false, Instant::now() + COPY_IDLE);
        assert_eq!(copy_store.list(), []);
        assert_eq!(copy_store.ask(&uses, b""), Err(ReplicaError::Missing));
        assert_eq!(copy_store.ask(&appends, &ReplicaBatch::default().encode()), Err(ReplicaError::Missing));
        let _left = std::fs::remove_dir_all(folder);
    }

    #[test]
    fn what_was_opened_again_tells_what_it_has_before_it_takes_more() {
        let (folder, copy_store, head) = copy_store("opened");
        assert!(copy_store.ask(&head, b"").is_ok());
        copy_store.open.lock().clear();
        assert_eq!(copy_store.list().len(), 1);
        let appends = ReplicaHead { ask: ReplicaAsk::Append, ..head.clone() };
        assert!(matches!(copy_store.ask(&appends, &ReplicaBatch::default().encode()), Err(ReplicaError::Gap(_))));
        assert!(copy_store.ask(&head, b"").is_ok());
        assert_eq!(copy_store.ask(&appends, &ReplicaBatch::default().encode()), Ok(None));
        let _left = std::fs::remove_dir_all(folder);
    }

    #[test]
    fn what_is_heard_of_an_owner_waits_for_no_disk_and_a_seal_confirms_nothing() {
        let (folder, copy_store, head) = copy_store("heard");
        let name = (head.owner.clone(), head.copy);
        assert_eq!(copy_store.heard(&name), OwnerContact::default());
        let ask = |head: &ReplicaHead| copy_store.answer(&head.encode(b"").unwrap()).unwrap();
        ask(&head);
        // It has told what it has, and its owner may find that this is less than it had confirmed.
        assert_eq!(copy_store.heard(&name), OwnerContact { questions: 1, asking: 0, confirms: false });
        let appends = ReplicaHead { ask: ReplicaAsk::Append, ..head.clone() };
        let append = || copy_store.answer(&appends.encode(&ReplicaBatch::default().encode()).unwrap()).unwrap();
        append();
        assert!(copy_store.heard(&name).confirms);
        ask(&head);
        assert!(!copy_store.heard(&name).confirms, "it is compared anew");
        append();
        assert_eq!(copy_store.heard(&name), OwnerContact { questions: 4, asking: 0, confirms: true });
        let busy = copy_store.copy(&mut copy_store.open.lock(), &name, CopyAccess::Uses).unwrap();
        {
            let (_open, _hangs) = (copy_store.open.lock(), busy.lock());
            assert_eq!(copy_store.heard(&name).questions, 4);
        }
        copy_store.seal(&name).unwrap();
        ask(&ReplicaHead { ask: ReplicaAsk::State { makes: false }, ..head.clone() });
        assert_eq!(copy_store.heard(&name), OwnerContact { questions: 5, asking: 0, confirms: false });
        copy_store.remove_unneeded(|_| false, Instant::now() + COPY_IDLE);
        assert_eq!(copy_store.heard(&name), OwnerContact::default());
        let _left = std::fs::remove_dir_all(folder);
    }

    #[test]
    fn an_owner_that_needs_other_leases_is_refused_by_name_and_still_heard() {
        let (folder, copy_store, head) = copy_store("lease");
        let name = (head.owner.clone(), head.copy);
        let append = ReplicaHead { ask: ReplicaAsk::Append, ..head.clone() };
        let ask = |head: &ReplicaHead| {
            let answer = copy_store.answer(&head.encode(&ReplicaBatch::default().encode()).unwrap()).unwrap();
            serde_json::from_slice::<ReplicaAnswer>(&answer).unwrap().read().map(drop)
        };
        assert_eq!((ask(&head), ask(&append)), (Ok(()), Ok(())));
        assert!(copy_store.heard(&name).confirms);
        let until = copy_store.copy(&mut copy_store.open.lock(), &name, CopyAccess::Uses).unwrap().lock().leased_until;
        for (lease_ms, said) in [(500, "needs leases of 500 ms"), (LEASE_MS - 1, "249 ms"), (0, "does not say")] {
            for head in [&head, &append] {
                let Err(ReplicaError::Log(refused)) = ask(&ReplicaHead { lease_ms, ..head.clone() }) else { panic!() };
                let refused = refused.to_string();
                assert!(refused.contains(said) && refused.contains("gives leases of 250 ms"), "{refused}");
                assert!(refused.contains(&head.owner), "{refused}");
            }
            // It lives, and its place is not taken by what has not confirmed the last question.
            assert!(!copy_store.heard(&name).confirms);
        }
        assert_eq!(copy_store.heard(&name).questions, 8);
        let copy = copy_store.copy(&mut copy_store.open.lock(), &name, CopyAccess::Uses).unwrap();
        assert_eq!(copy.lock().leased_until, until, "none was given");
        let _left = std::fs::remove_dir_all(folder);
    }

    #[test]
    fn a_copy_is_not_read_before_the_lease_ends_that_the_process_before_may_have_given() {
        let (folder, mut copy_store, head) = copy_store("earlier");
        let name = (head.owner.clone(), head.copy);
        assert!(copy_store.ask(&head, b"").is_ok());
        copy_store.open.lock().clear();
        copy_store.made.0 = boot_time() + Duration::from_secs(600);
        let copy = copy_store.copy(&mut copy_store.open.lock(), &name, CopyAccess::Uses).unwrap();
        assert_eq!(copy.lock().leased_until, copy_store.made.0 + EARLIER_LEASE);
        // A lease that is given ends no earlier one.
        assert!(copy_store.ask(&head, b"").is_ok());
        assert_eq!(copy.lock().leased_until, copy_store.made.0 + EARLIER_LEASE);
        let _left = std::fs::remove_dir_all(folder);
    }

    #[test]
    fn a_question_behind_a_disk_that_hangs_is_answered() {
        let (folder, copy_store, head) = copy_store("hangs");
        assert!(copy_store.ask(&head, b"").is_ok());
        let busy =
            copy_store.copy(&mut copy_store.open.lock(), &(head.owner.clone(), head.copy), CopyAccess::Uses).unwrap();
        {
            let _hangs = busy.lock();
            assert!(matches!(copy_store.ask(&head, b""), Err(ReplicaError::Log(_))));
        }
        {
            let _hangs = copy_store.open.lock();
            assert!(matches!(copy_store.ask(&head, b""), Err(ReplicaError::Log(_))));
        }
        assert!(copy_store.ask(&head, b"").is_ok());
        let _left = std::fs::remove_dir_all(folder);
    }
}
