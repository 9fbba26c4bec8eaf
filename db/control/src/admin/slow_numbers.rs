//! The numbers of slow requests over a restart. Not all slow requests are kept, but a client that was told a number may
//! ask for it after a restart: so no other request gets that number.
//!
//! A file has an upper bound of the numbers given so far. While the server runs the bound is far ahead, so that it is
//! seldom written, and holds after a crash. A server that ends in order writes the last number that it gave.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::limits::SLOW_NUMBERS_RESERVED;

/// The file, in the folder of incidents.
const FILE: &str = "slow.last";

/// See the head of this file.
#[derive(Debug)]
pub(super) struct SlowNumbers {
    file: PathBuf,
    /// The last number that the file allows.
    reserved: u64,
    /// Whether the last write failed.
    is_failing: bool,
}

impl SlowNumbers {
    /// Opens the file of a folder. Returns the last number that may have been given, `kept` at least, and has the file
    /// allow more.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn open(folder: &Path, kept: u64) -> io::Result<(SlowNumbers, u64)> {
        let file = folder.join(FILE);
        let last = match fs::read_to_string(&file) {
            Ok(text) => text.trim().parse().map_err(|_| io::Error::other(format!("{FILE} holds no number")))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        let last: u64 = kept.max(last);
        let mut numbers = SlowNumbers { file, reserved: last, is_failing: false };
        numbers.reserve(last);
        Ok((numbers, last))
    }

    /// Has the file allow more, where `last` of them are given and half of what it allows is used.
    pub(super) fn reserve(&mut self, last: u64) {
        if last.saturating_add(SLOW_NUMBERS_RESERVED / 2) >= self.reserved {
            self.write(last.saturating_add(SLOW_NUMBERS_RESERVED));
        }
    }

    /// Notes the last number: none is given any more.
    pub(super) fn end(&mut self, last: u64) {
        self.write(last);
    }

    fn write(&mut self, last: u64) {
        match self.replace_file(last) {
            Ok(()) => (self.reserved, self.is_failing) = (last, false),
            // A server on a full disk goes on: after a crash numbers of slow requests are given again.
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(%error, "the last slow number is not written to {}", self.file.display());
                }
            }
        }
    }

    /// The file is the one before or the new one, whenever the machine stops.
    fn replace_file(&self, last: u64) -> io::Result<()> {
        let new = self.file.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(format!("{last}\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_given_twice_whether_the_server_ends_or_crashes() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |kept| SlowNumbers::open(folder.path(), kept).expect("a readable file");
        let (mut numbers, last) = open(0);
        assert_eq!(last, 0);
        numbers.end(7);
        let (mut numbers, last) = open(5);
        assert_eq!(last, 7, "more than what is kept");
        // It gives as many as it can between two looks, and crashes each time.
        let mut given = last;
        for _ in 0..10 {
            given += SLOW_NUMBERS_RESERVED / 4;
            numbers.reserve(given);
            let found = fs::read_to_string(folder.path().join(FILE)).expect("a file");
            let allowed: u64 = found.trim().parse().expect("a number");
            assert!(allowed >= given + SLOW_NUMBERS_RESERVED / 2, "{allowed} after {given}");
        }
        let (_, last) = open(5);
        assert!(last >= given + SLOW_NUMBERS_RESERVED / 2, "{last} after {given}");
        let kept = last + 2 * SLOW_NUMBERS_RESERVED;
        assert_eq!(open(kept).1, kept, "what is kept counts, too");
    }

    #[test]
    fn a_file_that_is_damaged_is_no_beginning() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join(FILE), "seven\n").expect("room");
        assert!(SlowNumbers::open(folder.path(), 0).is_err());
    }
}
