//! The slots whose records a server has begun to copy from others, kept in the state directory. After a restart they
//! show what cancelled moves may have left: no server serves such records, and they are removed.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use sandstorm_store::slots::SlotSpan;

/// Name of the file in the state directory: a JSON list of moves' ids, first and last slots.
const NOTES_FILE: &str = "cluster.copies";

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct CopyNotes {
    /// `None`: they are not kept, in tests.
    folder: Option<PathBuf>,
    copies: Vec<(u64, u16, u16)>,
}

impl CopyNotes {
    /// Those of a state directory.
    ///
    /// # Errors
    /// One line: the file cannot be read, or is not understood.
    pub(crate) fn read(folder: &Path) -> Result<CopyNotes, String> {
        let path = folder.join(NOTES_FILE);
        let copies = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        Ok(CopyNotes { folder: Some(folder.to_owned()), copies })
    }

    /// The moves of which records may be here, with their slots.
    pub(crate) fn copies(&self) -> Vec<(u64, SlotSpan)> {
        self.copies.iter().map(|(id, first, last)| (*id, SlotSpan { first: *first, last: *last })).collect()
    }

    /// Notes a move before its first record comes.
    ///
    /// # Errors
    /// One line: it is not kept, so nothing is to be copied.
    pub(crate) fn add(&mut self, move_id: u64, span: SlotSpan) -> Result<(), String> {
        if self.copies.iter().any(|(id, ..)| *id == move_id) {
            return Ok(());
        }
        self.copies.push((move_id, span.first, span.last));
        let written = self.write();
        if written.is_err() {
            self.copies.pop();
        }
        written
    }

    /// Forgets a move: its records are removed, or this server's own. Where that is not kept, the next start looks for
    /// them once more.
    pub(crate) fn remove(&mut self, move_id: u64) {
        self.copies.retain(|(id, ..)| *id != move_id);
        if let Err(why) = self.write() {
            tracing::warn!("{why}");
        }
    }

    fn write(&self) -> Result<(), String> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let (path, beside) = (folder.join(NOTES_FILE), folder.join("cluster.copies.new"));
        let text = serde_json::to_vec(&self.copies).map_err(|error| error.to_string())?;
        let write = || {
            let mut file = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&beside)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&beside, &path)?;
            fs::File::open(folder)?.sync_all()
        };
        write().map_err(|error: std::io::Error| format!("{}: {error}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_begun_is_known_after_a_start_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let span = SlotSpan { first: 3, last: 9 };
        let mut notes = CopyNotes::read(folder.path()).unwrap();
        assert_eq!(notes.copies(), []);
        notes.add(7, span).unwrap();
        notes.add(7, span).unwrap();
        notes.add(8, span).unwrap();
        assert_eq!(CopyNotes::read(folder.path()).unwrap().copies(), [(7, span), (8, span)]);
        notes.remove(7);
        assert_eq!(CopyNotes::read(folder.path()).unwrap().copies(), [(8, span)]);
        fs::write(folder.path().join(NOTES_FILE), "[[1,2").unwrap();
        assert!(CopyNotes::read(folder.path()).is_err());
        fs::remove_dir_all(folder.path()).unwrap();
        assert!(notes.add(9, span).is_err() && notes.copies() == [(8, span)], "what is not kept is not copied");
    }
}
