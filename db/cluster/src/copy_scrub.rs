//! Copies that are read again from the disk while they are in use.

use std::sync::Arc;
use std::time::Instant;

use sandstorm_log::disk::LogDisk;
use sandstorm_log::{ReplicaError, ScrubDamage, ScrubStep, ScrubbedFile};

use crate::copy_coordinator::CopyName;
use crate::copy_store::{CopyAccess, CopyDamage, CopyStore, of_files};

impl CopyStore {
    /// The folder and the files of a copy, as they have to be; `None`: it is gone, known to be damaged, or one whose
    /// disk has failed a write. A closed copy is opened.
    pub(crate) fn scrubbed(&self, name: &CopyName) -> Option<(Arc<dyn LogDisk>, Vec<ScrubbedFile>)> {
        let found = self.copy(&mut self.open.lock(), name, CopyAccess::Looks);
        match found {
            Ok(_) if self.is_damaged(name) => None,
            Ok(copy) => {
                let replica = &copy.lock().replica;
                // It confirms nothing any more, and what is on its disk is not known: it is neither sound nor damaged.
                (!replica.has_failed()).then(|| (replica.disk(), replica.scrubbed_files()))
            }
            Err(ReplicaError::Damaged(_) | ReplicaError::Missing) => None,
            Err(error) => {
                tracing::warn!(owner = %name.0, "a copy cannot be read again: {error}");
                None
            }
        }
    }

    /// Looks once more at what seems to be damaged, while nothing writes the copy: a file may have been replaced, or
    /// removed. Returns whether it is damaged.
    pub(crate) fn confirm_damage(&self, name: &CopyName, file: &ScrubbedFile, seen: &ScrubDamage) -> bool {
        let known = self.open.lock().get(name).map(|known| known.copy());
        let Some(copy) = known else { return false };
        let copy = copy.lock();
        if copy.replica.has_failed() || !copy.replica.has_file(file) {
            return false;
        }
        let disk = copy.replica.disk();
        let found = match file.open_again(&*disk, seen) {
            Ok(Ok(mut again)) => match again.step() {
                ScrubStep::Damage(found) => found,
                ScrubStep::Sound(_) | ScrubStep::End => return false,
            },
            Ok(Err(found)) => found,
            Err(_) => return false,
        };
        // What was not read behind something else may be damaged as well.
        let (text, is_padding) = (found.to_string(), seen.is_padding && found.is_padding);
        self.condemn(name, CopyDamage { text, is_padding })
    }

    /// Whether a copy still has a file, as far as is known: it may be removed, or replaced, while it is read.
    pub(crate) fn has_file(&self, name: &CopyName, file: &ScrubbedFile) -> bool {
        let known = self.open.lock().get(name).map(|known| known.copy());
        known.is_some_and(|copy| copy.lock().replica.has_file(file))
    }

    /// Looks whether the promise of a copy is on its disk, and whether a sealed one ends where it has to. Returns
    /// whether it is sound.
    pub(crate) fn confirm_ends(&self, name: &CopyName) -> bool {
        let known = self.open.lock().get(name).map(|known| known.copy());
        let Some(copy) = known else { return true };
        let copy = copy.lock();
        let check = || copy.replica.check_promise().and_then(|()| copy.replica.check_sealed());
        // Twice, as files are.
        let checked = check().or_else(|_| check());
        match checked.map_err(of_files) {
            Err(ReplicaError::Damaged(text)) => !self.condemn(name, CopyDamage { text, is_padding: false }),
            // What cannot be read now may be this process's fault.
            Ok(()) | Err(_) => true,
        }
    }

    /// Notes that a copy is damaged, unless it was removed meanwhile.
    fn condemn(&self, name: &CopyName, damage: CopyDamage) -> bool {
        let is_there = self.open.lock().contains_key(name);
        if is_there {
            self.note_damage(name, damage);
        }
        is_there
    }

    /// All of a copy was read again, and is sound.
    pub(crate) fn note_checked(&self, name: &CopyName) {
        if let Some(known) = self.open.lock().get_mut(name) {
            known.checked = Some(Instant::now());
        }
    }
}
