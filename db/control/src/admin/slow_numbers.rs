//! The numbers of slow requests over a restart. Not all slow requests are kept, but a client that was told a number may
//! ask for it after a restart: so no other request gets that number.
//!
//! A file has an upper bound of the numbers given so far. While the server runs the bound is far ahead, so that it is
//! seldom written, and holds after a crash. A server that ends in order writes the last number that it gave. The file
//! is JSON with a checksum; in its first format it was the number alone.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::checked_json::NumberFile;
use crate::limits::SLOW_NUMBERS_RESERVED;

/// The file, in the folder of incidents.
const FILE: &str = "slow.last";
/// What is in it.
const CONTENT: NumberFile = NumberFile { field: "last" };

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
    /// The file cannot be read, is damaged, or was written by a later version of this program.
    pub(super) fn open(folder: &Path, kept: u64) -> io::Result<(SlowNumbers, u64)> {
        let file = folder.join(FILE);
        let unusable = |why: String| {
            let what = format!(
                "{}: {why}. Put it back from a backup; without it numbers of slow requests are given again",
                file.display()
            );
            io::Error::other(what)
        };
        let last = match fs::read(&file) {
            Ok(bytes) => CONTENT.decode(&bytes).map_err(unusable)?,
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
        file.write_all(&CONTENT.encode(last))?;
        file.sync_all()?;
        fs::rename(&new, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{assert_golden, golden_file};

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
            let found = fs::read(folder.path().join(FILE)).expect("a file");
            let allowed = CONTENT.decode(&found).expect("a number");
            assert!(allowed >= given + SLOW_NUMBERS_RESERVED / 2, "{allowed} after {given}");
        }
        let (_, last) = open(5);
        assert!(last >= given + SLOW_NUMBERS_RESERVED / 2, "{last} after {given}");
        let kept = last + 2 * SLOW_NUMBERS_RESERVED;
        assert_eq!(open(kept).1, kept, "what is kept counts, too");
    }

    #[test]
    fn golden_files_of_both_formats_are_read_and_the_newest_is_what_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(FILE);
        let (mut numbers, _) = SlowNumbers::open(folder.path(), 0).expect("a new file");
        numbers.end(1_000_007);
        assert_golden("slow-last-format-2.json", &fs::read(&file).expect("a file"));
        for format in ["slow-last-format-1.txt", "slow-last-format-2.json"] {
            fs::write(&file, golden_file(format)).expect("room");
            assert_eq!(SlowNumbers::open(folder.path(), 0).expect("a golden file").1, 1_000_007, "{format}");
        }
    }

    #[test]
    fn a_file_that_is_damaged_or_newer_is_no_beginning_and_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(FILE);
        let good = golden_file("slow-last-format-2.json");
        let mut flipped = good.clone();
        flipped[20] ^= 1;
        for (bytes, why) in [
            (&b"seven\n"[..], "expected value"),
            (&flipped[..], "its checksum is wrong"),
            (&good[..40], "it has no checksum"),
            (&b"{\"format\":3,\"last\":7}\n"[..], "start the newer version"),
        ] {
            fs::write(&path, bytes).expect("room");
            let error = SlowNumbers::open(folder.path(), 0).expect_err("it is unusable").to_string();
            assert!(error.contains(why) && error.contains(&*path.to_string_lossy()), "{error}");
        }
    }
}
