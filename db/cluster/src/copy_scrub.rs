//! Copies that are read again from the disk while they are in use.

use std::sync::Arc;
use std::time::Instant;

use sandstorm_log::disk::LogDisk;
use sandstorm_log::{ReplicaError, ScrubDamage, ScrubStep, ScrubbedFile};

use crate::copy_coordinator::CopyName;
use crate::copy_store::{CopyAccess, CopyStore, of_files};

impl CopyStore {
    /// The folder and the files of a copy, as they have to be; `None`: it is gone, known to be damaged, or one whose
    /// disk has failed a write. One that is not open is opened.
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
        self.condemn(name, &found.to_string())
    }

    /// Looks whether the promise of a copy is on its disk. Returns whether it is sound.
    pub(crate) fn confirm_promise(&self, name: &CopyName) -> bool {
        let known = self.open.lock().get(name).map(|known| known.copy());
        let Some(copy) = known else { return true };
        let copy = copy.lock();
        // Twice, as files are.
        let checked = copy.replica.check_promise().or_else(|_| copy.replica.check_promise());
        match checked.map_err(of_files) {
            Err(ReplicaError::Damaged(text)) => !self.condemn(name, &text),
            // What cannot be read now may be this process's fault.
            Ok(()) | Err(_) => true,
        }
    }

    /// Notes that a copy is damaged, unless it was removed meanwhile.
    fn condemn(&self, name: &CopyName, text: &str) -> bool {
        let is_there = self.open.lock().contains_key(name);
        if is_there {
            self.note_damage(name, text);
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
