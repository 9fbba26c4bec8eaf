//! The journal: a file of lines in the state directory, `CHECKSUM LENGTH JSON`, the first of which names the format.
//!
//! Only the last line can be half-written: each is on the disk before the next begins. So a tail that is shorter than it says,
//! or has the zeros of blocks that were never written, was never acknowledged and is cut; anything else that does not fit
//! is damage, and the server does not start on it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::state::{Change, State};
use crate::limits::tenants::{JOURNAL_GROWTH, JOURNAL_LEAST_BYTES};

/// Name of the journal in the state directory.
pub const JOURNAL_FILE: &str = "directory.journal";
/// Name of the file that a running server holds locked.
const LOCK_FILE: &str = "directory.lock";
/// The format that is written here.
const FORMAT: u64 = 1;
/// Hexadecimal digits of a line's checksum: the first half of a SHA-256.
const CHECKSUM_DIGITS: usize = 32;
/// Those of its length.
const LENGTH_DIGITS: usize = 8;
/// Bytes of a line before its JSON.
const LINE_HEAD: usize = CHECKSUM_DIGITS + 1 + LENGTH_DIGITS + 1;

/// Why nothing can be kept, or what was kept cannot be used: one line that names the file and says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KeptError(pub(crate) String);

/// The first line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    sandstorm_directory: u64,
}

/// The open journal. One process at a time has it.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    file: Option<File>,
    _lock: File,
    /// Bytes of the file that are whole lines.
    bytes: u64,
    /// Number of the last line.
    line: u64,
    /// Where the file is replaced by one that holds what there is.
    replace_at: u64,
}

/// What is wrong with the file, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Damage {
    line: u64,
    at: usize,
    what: String,
}

impl Journal {
    /// Opens the journal in a folder, which need not have one, and reads it. Nothing is written yet, except that a tail
    /// which was never acknowledged is not read: [`Journal::replace`] writes a file without it.
    ///
    /// # Errors
    /// [`KeptError`]: another process has it; the file cannot be read, is open to others, damaged, or of a newer server.
    pub fn open(folder: &Path) -> Result<(Journal, State), KeptError> {
        let lock = lock(&folder.join(LOCK_FILE))?;
        let path = folder.join(JOURNAL_FILE);
        let mut journal =
            Journal { folder: folder.to_owned(), file: None, _lock: lock, bytes: 0, line: 0, replace_at: 0 };
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((journal, State::default())),
            Err(error) => return Err(KeptError(format!("cannot read {}: {error}", path.display()))),
        };
        check_private(&path)?;
        let (state, whole) = read(&bytes).map_err(|damage| damage.explain(&path))?;
        if whole < bytes.len() {
            let cut = bytes.len() - whole;
            tracing::warn!(
                "{}: its last {cut} bytes are of a change that was never answered; they are cut",
                path.display()
            );
        }
        journal.bytes = whole as u64;
        Ok((journal, state))
    }

    /// Writes what a change has come to, and waits until it is on the disk. `all` gives the whole after the change, for when
    /// the file is to be replaced.
    pub(in super::super) fn record(
        &mut self,
        mut change: Change,
        all: impl FnOnce() -> State,
    ) -> Result<(), KeptError> {
        let due = self.file.is_none();
        if due || self.bytes >= self.replace_at {
            let state = all();
            match self.replace(&state) {
                Ok(()) => return Ok(()),
                Err(error) if due => return Err(error),
                Err(error) => {
                    tracing::error!(%error, "the journal grows on");
                    self.replace_at = self.bytes.saturating_mul(2);
                }
            }
        }
        change.line = self.line + 1;
        let line = line(&change).map_err(|error| self.failed(&error))?;
        self.append(&line).map_err(|error| {
            // What is in the file now is not known: the next change begins with a new one.
            if let Some(file) = self.file.take() {
                let _also_failed = file.set_len(self.bytes).and_then(|()| file.sync_all());
            }
            self.failed(&error)
        })?;
        self.bytes += line.len() as u64;
        self.line = change.line;
        Ok(())
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotConnected.into()) };
        file.write_all(line)?;
        file.sync_data()
    }

    /// Puts a file in place that holds `state` and nothing else, whole or not at all.
    ///
    /// # Errors
    /// [`KeptError`]: the file cannot be written; the one before is there still, or the new one.
    pub fn replace(&mut self, state: &State) -> Result<(), KeptError> {
        let mut write = || {
            // Made with mode 0600 under a name of its own.
            let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(&self.folder)?;
            let text = whole(state)?;
            file.write_all(&text.0)?;
            file.as_file().sync_all()?;
            // Whatever becomes of what follows, the file before is not written to any more.
            self.file = None;
            let mut file = file.persist(self.folder.join(JOURNAL_FILE)).map_err(|error| error.error)?;
            File::open(&self.folder)?.sync_all()?;
            file.seek(SeekFrom::End(0))?;
            Ok((file, text))
        };
        let (file, (text, line)) = write().map_err(|error: io::Error| self.failed(&error))?;
        self.bytes = text.len() as u64;
        self.replace_at = (self.bytes * JOURNAL_GROWTH).max(JOURNAL_LEAST_BYTES);
        (self.file, self.line) = (Some(file), line);
        Ok(())
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> KeptError {
        let path = self.folder.join(JOURNAL_FILE);
        KeptError(format!("the change cannot be kept: writing {}: {error}", path.display()))
    }

    /// As if writing had failed.
    #[cfg(test)]
    pub(in super::super) fn lose_file(&mut self) {
        self.file = None;
    }

    /// Replaces the file where it has so many bytes.
    #[cfg(test)]
    pub(super) fn replace_at(&mut self, bytes: u64) {
        self.replace_at = bytes;
    }

    /// Bytes of the file.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Damage {
    fn explain(&self, path: &Path) -> KeptError {
        let (shown, Damage { line, at, what }) = (path.display(), self);
        KeptError(format!(
            "{shown} cannot be used: line {line}, at byte {at}: {what}; put the file back from a backup, or move it away to \
             start without the tenants, tokens and extensions that it holds"
        ))
    }
}

/// The lock of a running server, or why another has it.
fn lock(path: &Path) -> Result<File, KeptError> {
    let failed = |error: &dyn std::fmt::Display| KeptError(format!("cannot lock {}: {error}", path.display()));
    let file = fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
    let file = file.map_err(|error| failed(&error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(KeptError(format!(
            "another server runs with this state directory (it holds {}); stop it, or choose another with --state, or say \
             --ephemeral to keep nothing",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => Err(failed(&error)),
    }
}

fn check_private(path: &Path) -> Result<(), KeptError> {
    let shown = path.display();
    let metadata = fs::metadata(path).map_err(|error| KeptError(format!("cannot look at {shown}: {error}")))?;
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeptError(format!("{shown} has mode {mode:o}: others could read it; run: chmod 600 {shown}")));
    }
    Ok(())
}

/// What stands before a line's JSON.
fn head(json: &[u8]) -> String {
    let digest = Sha256::digest(json);
    let checksum: String = digest.iter().take(CHECKSUM_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect();
    format!("{checksum} {:0LENGTH_DIGITS$x} ", json.len())
}

/// Whether the rest of a file is a line that was not written to its end.
fn is_torn(rest: &[u8]) -> bool {
    if rest.contains(&0) {
        return true;
    }
    if rest.contains(&b'\n') {
        return false;
    }
    let Some(length) = rest.get(CHECKSUM_DIGITS + 1..CHECKSUM_DIGITS + 1 + LENGTH_DIGITS) else { return true };
    let length = std::str::from_utf8(length).ok().and_then(|digits| usize::from_str_radix(digits, 16).ok());
    length.is_some_and(|length| rest.len() < LINE_HEAD + length + 1)
}

fn line(what: &impl Serialize) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(what)?;
    Ok([head(&json).as_bytes(), &json, b"\n"].concat())
}

/// A file that holds `state`, and the number of its last line.
fn whole(state: &State) -> io::Result<(Vec<u8>, u64)> {
    let State { tenants, next_tenant, next_home } = state;
    let mut text = line(&Head { sandstorm_directory: FORMAT })?;
    let mut number = 0;
    // One line at least: what the next tenant gets is to be kept, too.
    for put in std::iter::once(vec![]).chain(tenants.values().map(|tenant| vec![tenant.clone()])) {
        number += 1;
        let change = Change { line: number, next_tenant: *next_tenant, next_home: *next_home, put, gone: Vec::new() };
        text.extend(line(&change)?);
    }
    Ok((text, number))
}

/// What a file holds, and how many of its bytes are whole lines.
pub(super) fn read(bytes: &[u8]) -> Result<(State, usize), Damage> {
    let (mut state, mut number, mut at) = (State::default(), 0, 0);
    while at < bytes.len() {
        let damaged = |what: String| Damage { line: number + 1, at, what };
        let length = bytes[at..].iter().position(|byte| *byte == b'\n');
        let (line, end) = length.map_or((&[][..], bytes.len()), |length| (&bytes[at..at + length], at + length + 1));
        let json = match line.split_at_checked(LINE_HEAD) {
            Some((start, json)) if start == head(json).as_bytes() => json,
            _ if number > 1 && end == bytes.len() && is_torn(&bytes[at..]) => break,
            _ => return Err(damaged("it is not what was written (its checksum does not fit)".to_owned())),
        };
        if number == 0 {
            let head: Head = serde_json::from_slice(json).map_err(|error| damaged(error.to_string()))?;
            if head.sandstorm_directory != FORMAT {
                let found = head.sandstorm_directory;
                let what =
                    format!("it has format {found}, and this server knows format {FORMAT}: is it of a newer one?");
                return Err(damaged(what));
            }
        } else {
            let change: Change = serde_json::from_slice(json)
                .map_err(|error| damaged(format!("it is not understood ({error}): is it of a newer server?")))?;
            if change.line != number {
                return Err(damaged(format!("it says that it is line {}: lines are missing", change.line + 1)));
            }
            state.apply(change);
        }
        (number, at) = (number + 1, end);
    }
    // A file is put in place with its head and one line at least.
    if number < 2 {
        return Err(Damage { line: number + 1, at, what: "the file ends before its first line does".to_owned() });
    }
    Ok((state, at))
}
