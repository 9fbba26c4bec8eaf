//! The scrubbing thread reads this server's log, and the copies of other servers' logs kept here, again from the disk.
//! So a disk that changes bytes, or cannot read them any more, is noticed before they are needed.
//!
//! A copy that is damaged confirms nothing from then on, so that its owner makes another one. Where the server's own
//! log is damaged, a checkpoint is asked for: the tables have all records, and no start reads what was there before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sandstorm_catalog::Directory;
use sandstorm_log::disk::LogDisk;
use sandstorm_log::{ChangeLog, ScrubDamage, ScrubStep, ScrubbedFile};

use crate::copy_coordinator::CopyName;
use crate::copy_store::CopyStore;
use crate::limits::{SCRUB_BYTES_PER_S, SCRUB_FIRST, SCRUB_LOOK, SCRUB_PERIOD, SCRUB_REPAIR_AGAIN, SCRUB_REST_BYTES};
use crate::move_coordinator::MoveCoordinator;

/// The thread. Stops when dropped.
#[derive(Debug)]
pub struct LogScrubber {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LogScrubber {
    /// Starts the thread. `coordinator`: this server's part in its cluster, if it is in one.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(directory: Arc<Directory>, coordinator: Option<Arc<MoveCoordinator>>) -> std::io::Result<LogScrubber> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut run = ScrubLoop { directory, coordinator, stop: Arc::clone(&stop), debt: 0, repair: None };
        let thread = std::thread::Builder::new().name("log-scrub".to_owned()).spawn(move || run.run())?;
        Ok(LogScrubber { stop, thread: Some(thread) })
    }
}

impl Drop for LogScrubber {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ended = thread.join();
        }
    }
}

/// What was found of a file.
enum FileOutcome {
    Sound,
    Damaged(ScrubDamage),
    /// It was not read, or not to its end: that says nothing of it.
    Unread,
}

/// Damage of the log that a checkpoint is to take the place of.
struct LogRepair {
    files: Vec<ScrubbedFile>,
    /// When one was asked for last.
    asked: Option<Instant>,
}

struct ScrubLoop {
    directory: Arc<Directory>,
    coordinator: Option<Arc<MoveCoordinator>>,
    stop: Arc<AtomicBool>,
    /// Bytes that were read since the last rest.
    debt: u64,
    repair: Option<LogRepair>,
}

impl ScrubLoop {
    fn run(&mut self) {
        self.directory.scrub_progress().set_thread(std::thread::current());
        let mut next = Instant::now() + SCRUB_FIRST;
        while !self.stops() {
            self.look_at_repair();
            let now = Instant::now();
            if now >= next || self.directory.scrub_progress().is_asked() {
                next = now + SCRUB_PERIOD;
                self.pass();
            }
            std::thread::park_timeout(SCRUB_LOOK);
        }
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Reads everything once.
    fn pass(&mut self) {
        let directory = Arc::clone(&self.directory);
        directory.scrub_progress().begin();
        let mut damage = 0;
        if let Some(log) = directory.change_log() {
            damage += self.read_log(&log);
            // The copies may take hours: the log is not left as it is for so long.
            self.look_at_repair();
        }
        let coordinator = self.coordinator.clone();
        if let Some(copy_store) = coordinator.as_ref().and_then(|coordinator| coordinator.copies_view().copy_store()) {
            for name in copy_store.names() {
                damage += u64::from(!self.read_copy(copy_store, &name));
            }
        }
        if !self.stops() {
            directory.scrub_progress().end(damage);
        }
    }

    /// Reads this server's log. Returns how many of its files are damaged.
    fn read_log(&mut self, log: &Arc<ChangeLog>) -> u64 {
        let (disk, mut damaged) = (log.disk(), Vec::new());
        for file in log.scrubbed_files() {
            let FileOutcome::Damaged(seen) = self.read_file(&*disk, &file) else { continue };
            // What a checkpoint has removed meanwhile is no damage, and nor is what is sound the second time.
            let again = match file.open_again(&*disk, &seen) {
                Ok(Ok(mut again)) => matches!(again.step(), ScrubStep::Damage(_)),
                Ok(Err(_)) => true,
                Err(_) => false,
            };
            if again && log.needs_file(&file) {
                tracing::error!("{seen}. A checkpoint of the records in memory takes the place of what is damaged");
                self.directory.scrub_progress().note_damage();
                damaged.push((file, seen.to_string()));
            }
        }
        let found = damaged.len() as u64;
        if let Some((_, text)) = damaged.first() {
            self.directory.scrub_progress().set_log_damage(Some(text.clone()));
            let files = damaged.into_iter().map(|(file, _)| file).collect();
            self.repair = Some(LogRepair { files, asked: None });
        }
        found
    }

    /// Has a checkpoint written as long as a start would still read what is damaged.
    fn look_at_repair(&mut self) {
        let Some(repair) = &mut self.repair else { return };
        let Some(log) = self.directory.change_log() else { return };
        let mut needed = repair.files.iter().filter(|file| log.needs_file(file)).peekable();
        if needed.peek().is_some() {
            // A start reads the segment of the checkpoint's position from its beginning: that has to be another one.
            let is_written = needed.filter(|file| log.leave_segment(file)).count() > 0;
            if !is_written && repair.asked.is_none_or(|at| at.elapsed() >= SCRUB_REPAIR_AGAIN) {
                repair.asked = Some(Instant::now());
                self.directory.checkpoint_requests().ask();
            }
            return;
        }
        tracing::warn!("a checkpoint has taken the place of what was damaged of the log");
        self.repair = None;
        self.directory.scrub_progress().set_log_damage(None);
    }

    /// Reads a copy. Returns whether nothing of it is known to be damaged.
    fn read_copy(&mut self, copy_store: &CopyStore, name: &CopyName) -> bool {
        let Some((disk, files)) = copy_store.scrubbed(name) else { return !copy_store.is_damaged(name) };
        judge_copy(copy_store, name, &files, |file| self.read_file(&*disk, file))
    }

    fn read_file(&mut self, disk: &dyn LogDisk, file: &ScrubbedFile) -> FileOutcome {
        let mut opened = match file.open(disk) {
            Ok(Ok(opened)) => opened,
            Ok(Err(damage)) => return FileOutcome::Damaged(damage),
            Err(error) => {
                tracing::warn!("a file cannot be read again: {error}");
                return FileOutcome::Unread;
            }
        };
        let mut padding = None;
        loop {
            match opened.step() {
                ScrubStep::Sound(bytes) => {
                    self.directory.scrub_progress().note_sound(bytes);
                    self.rest(bytes);
                }
                ScrubStep::End => return padding.map_or(FileOutcome::Sound, FileOutcome::Damaged),
                ScrubStep::Damage(damage) if damage.is_padding => {
                    padding.get_or_insert(damage);
                }
                ScrubStep::Damage(damage) => return FileOutcome::Damaged(damage),
            }
            if self.stops() {
                return FileOutcome::Unread;
            }
        }
    }

    /// Rests, so that no more is read in a second than may be.
    fn rest(&mut self, bytes: u64) {
        self.debt += bytes;
        if self.debt < SCRUB_REST_BYTES {
            return;
        }
        let until = Instant::now() + Duration::from_nanos(self.debt.saturating_mul(1_000_000_000) / SCRUB_BYTES_PER_S);
        self.debt = 0;
        while Instant::now() < until && !self.stops() {
            std::thread::park_timeout(until.saturating_duration_since(Instant::now()));
        }
        self.look_at_repair();
    }
}

/// Notes what is found of the files of a copy, each of which is read once. Returns whether nothing of it is known to be
/// damaged.
fn judge_copy(
    copy_store: &CopyStore,
    name: &CopyName,
    files: &[ScrubbedFile],
    mut read: impl FnMut(&ScrubbedFile) -> FileOutcome,
) -> bool {
    let (mut is_read, mut is_sound) = (true, true);
    for file in files {
        match read(file) {
            FileOutcome::Sound => {}
            FileOutcome::Damaged(seen) if copy_store.confirm_damage(name, file, &seen) => {
                // Behind damage of padding there may be some of what was confirmed.
                is_sound = false;
                if !seen.is_padding {
                    return false;
                }
            }
            // Sound the second time, or not looked at: what is behind was not read. A file that was removed or replaced
            // meanwhile is no part of the copy any more.
            FileOutcome::Damaged(_) => is_read &= !copy_store.has_file(name, file),
            FileOutcome::Unread => is_read = false,
        }
    }
    is_sound &= copy_store.confirm_ends(name);
    if is_sound && is_read {
        copy_store.note_checked(name);
    }
    is_sound
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use sandstorm_catalog::{DirectoryOptions, NewTable, NewTenant, TableDurability};
    use sandstorm_log::{LogFolder, LogOptions, RecoveredLog};
    use sandstorm_store::{Epochs, WriteOptions};

    use super::*;
    use crate::copy_store::tests::{flip, whole_copy};

    fn files_of(folder: &Path, prefix: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let mut found: Vec<PathBuf> = entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
            .map(|entry| entry.path())
            .collect();
        found.sort();
        found
    }

    /// A damaged log is told of, a checkpoint is asked for, and once there is one nothing is damaged any more.
    #[test]
    fn damage_of_the_log_is_told_and_a_checkpoint_takes_its_place() {
        let folder = std::env::temp_dir().join(format!("sandstorm-scrub-{}", std::process::id()));
        let _left = std::fs::remove_dir_all(&folder);
        let options = DirectoryOptions { can_keep_records: true, ..DirectoryOptions::default() };
        let directory = Directory::with_options(Epochs::new(), options);
        directory.restore_records(&folder.join("log"), 1, |log| log.start()).unwrap();
        directory.create_tenant(NewTenant::named("shop")).unwrap();
        let new = NewTable { durability: Some(TableDurability::Disk), ..NewTable::named("items") };
        directory.create_table("shop", new).unwrap();
        let log = directory.change_log().unwrap();
        let position = {
            let view = directory.snapshot().by_name("shop").unwrap().clone();
            let (entry, participant) = (view.table_by_name("items").unwrap(), directory.participant());
            let table = &entry.table;
            table.put(&participant, table.hash(b"apple"), b"apple", b"3", &WriteOptions::default(), 1).unwrap();
            participant.shown().take()
        };
        log.request(position);
        assert!(log.wait(position, Duration::from_secs(60)));
        let stop = Arc::new(AtomicBool::new(false));
        let mut scrub = ScrubLoop { directory: Arc::clone(&directory), coordinator: None, stop, debt: 0, repair: None };
        scrub.pass();
        let status = directory.scrub_progress().status();
        assert!(status.log_damage.is_none() && status.last.is_some_and(|last| last.damage == 0 && last.bytes > 0));

        let segment = files_of(&folder.join("log"), "log-").pop().unwrap();
        let mut bytes = std::fs::read(&segment).unwrap();
        bytes[4_100] ^= 1;
        std::fs::write(&segment, &bytes).unwrap();
        scrub.pass();
        let status = directory.scrub_progress().status();
        assert!(status.log_damage.as_ref().is_some_and(|text| text.contains("byte 4096")), "{status:?}");
        assert_eq!((directory.scrub_progress().take_notes().len(), directory.scrub_progress().counts()[1]), (1, 1));
        // The damaged part is in the segment that is written: the log goes on with another one first. The pass itself
        // has asked for that.
        assert!(directory.checkpoint_requests().pending().is_none());
        let until = Instant::now() + Duration::from_secs(120);
        while files_of(&folder.join("log"), "log-").len() < 2 {
            assert!(Instant::now() < until, "no new segment is begun");
            std::thread::sleep(Duration::from_millis(1));
        }
        // And the next one asks for the checkpoint while it reads, whatever else it has to read.
        while directory.checkpoint_requests().pending().is_none() {
            assert!(Instant::now() < until, "no checkpoint is asked for");
            scrub.rest(SCRUB_REST_BYTES);
        }
        scrub.look_at_repair();
        assert!(directory.scrub_progress().status().log_damage.is_some(), "there is no checkpoint yet");
        sandstorm_log::CheckpointWriter::begin(&log).unwrap().finish().unwrap();
        scrub.look_at_repair();
        assert!(directory.scrub_progress().status().log_damage.is_none());
        // Not even its header is read any more.
        let mut bytes = std::fs::read(&segment).unwrap();
        bytes[20] ^= 1;
        std::fs::write(&segment, &bytes).unwrap();
        let read = LogFolder::read(&folder.join("log"));
        RecoveredLog::read(Arc::new(read), LogOptions::default(), &mut |_, _| Ok(())).expect("a start could read it");
        scrub.pass();
        assert!(directory.scrub_progress().status().last.is_some_and(|last| last.damage == 0));
        log.close();
        let _left = std::fs::remove_dir_all(folder);
    }

    /// A copy of which something could not be read once, and could the second time, was not read to its end.
    #[test]
    fn a_copy_that_was_not_read_to_its_end_does_not_count_as_checked() {
        let (folder, copy_store, name) = whole_copy("checked");
        let stop = Arc::new(AtomicBool::new(false));
        let directory = Directory::with_options(Epochs::new(), DirectoryOptions::default());
        let mut scrub = ScrubLoop { directory, coordinator: None, stop, debt: 0, repair: None };
        let is_checked = || copy_store.list()[0].checked.is_some();
        let (disk, files) = copy_store.scrubbed(&name).unwrap();
        flip(&copy_store, &name, (1, 2 * 4_096 + 70));
        let FileOutcome::Damaged(seen) = scrub.read_file(&*disk, &files[0]) else { panic!("it is damaged") };
        flip(&copy_store, &name, (1, 2 * 4_096 + 70));
        let as_seen = |_: &ScrubbedFile| FileOutcome::Damaged(seen.clone());
        assert!(judge_copy(&copy_store, &name, &files[..1], as_seen), "nothing is known to be damaged");
        assert!(judge_copy(&copy_store, &name, &files, |_| FileOutcome::Unread));
        assert!(!is_checked() && !copy_store.is_damaged(&name));
        assert!(scrub.read_copy(&copy_store, &name) && is_checked());
        // What the copy has no more, as it was removed or replaced meanwhile, is no part of it.
        let (other_folder, other_store, other) = whole_copy("other");
        let (_other_disk, gone) = other_store.scrubbed(&other).unwrap();
        drop(disk);
        copy_store.close(&name);
        assert!(!is_checked());
        assert!(judge_copy(&copy_store, &name, &gone, as_seen) && is_checked());
        [folder, other_folder].iter().for_each(|folder| drop(std::fs::remove_dir_all(folder)));
    }

    /// Damage of padding is not all that is looked for: what was confirmed may be damaged behind it.
    #[test]
    fn what_is_behind_damaged_padding_is_read_as_well() {
        for behind in [(1, 2 * 4_096 + 70), (2, 4_096 + 70)] {
            let (folder, copy_store, name) = whole_copy("behind");
            let stop = Arc::new(AtomicBool::new(false));
            let directory = Directory::with_options(Epochs::new(), DirectoryOptions::default());
            let mut scrub = ScrubLoop { directory, coordinator: None, stop, debt: 0, repair: None };
            flip(&copy_store, &name, (1, 4_096 + 70));
            flip(&copy_store, &name, behind);
            assert!(!scrub.read_copy(&copy_store, &name));
            assert!(copy_store.seal(&name).is_err(), "it has not all that it had confirmed: {behind:?}");
            let _left = std::fs::remove_dir_all(folder);
        }
    }
}
