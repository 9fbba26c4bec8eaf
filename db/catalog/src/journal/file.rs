//! The journal: a file of lines in the state directory, `CHECKSUM LENGTH JSON`, the first of which names the format.
//!
//! Only the last line can be half-written: each is on the disk before the next begins. A killed server leaves a tail
//! that begins as the next line would. It is shorter than it states, or has the zeros of blocks that were never
//! written, and it was never acknowledged. A file that was cut by hand looks the same, so the tail is put aside, and
//! the log mentions both causes. Anything else, such as a bad line with others behind it, is damage, and the server
//! does not start on it.
//!
//! A disk that accepts no writes (full, over a quota, read-only) does not prevent a server from starting with the
//! file's content, nor from serving. Changes are refused until the file can be written again.

use std::fs::{self, File, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use data_encoding::HEXLOWER;
use hashbrown::HashSet;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::format::{DirectoryImage, JournalEntry};
use crate::limits::{
    JOURNAL_BACKOFF_FACTOR, JOURNAL_LOG_EVERY, JOURNAL_RETRY, JOURNAL_SLOW_ATTEMPT, TRUNCATED_FILE_BYTES,
    TRUNCATED_FILES,
};
use crate::limits::{JOURNAL_GROWTH, JOURNAL_MIN_BYTES, LOCK_RETRIES, LOCK_RETRY_INTERVAL};

/// Name of the journal in the state directory.
pub const JOURNAL_FILE: &str = "directory.journal";
/// Beginning of the names of files with bytes that were cut off the journal; the time in milliseconds since 1970
/// follows.
pub const CUT_PREFIX: &str = "directory.journal.cut-";
/// Name of the file that a running server locks.
pub const LOCK_FILE: &str = "directory.lock";
/// The format that is written here.
const FORMAT: u64 = 1;
/// Hexadecimal digits of a line's checksum: the first half of a SHA-256.
const CHECKSUM_DIGITS: usize = 32;
/// Hexadecimal digits of a line's length.
const LENGTH_DIGITS: usize = 8;
/// Bytes of a line before its JSON.
const LINE_HEAD: usize = CHECKSUM_DIGITS + 1 + LENGTH_DIGITS + 1;

/// The reason that nothing can be persisted, or that the file cannot be used: one line with the file and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JournalError(pub(crate) String);

/// The first line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JournalHeader {
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
    /// Length at which the file is replaced by one with the current state.
    replace_at: u64,
    /// Numbers in the log of the tables in the file, as it was opened.
    log_numbers: HashSet<u64>,
    /// Bytes behind the last whole line, and the file into which they are put before the journal is replaced.
    cut: Option<(PathBuf, Vec<u8>)>,
    /// The reason that it cannot be written at the moment.
    write_failure: Option<WriteFailure>,
    /// Simulates a full disk.
    #[cfg(test)]
    full: bool,
}

/// The reason that a journal is not written.
#[derive(Debug)]
struct WriteFailure {
    why: JournalError,
    since_ms: u64,
    /// Whether the disk accepts no writes at all, so that nothing on it has changed either.
    no_room: bool,
    /// The time and duration of the last attempt.
    tried: Instant,
    took: std::time::Duration,
    logged: Option<Instant>,
}

/// The damage of a file, and its location.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JournalDamage {
    line: u64,
    at: usize,
    what: String,
}

/// The numbers of tables in the log.
fn log_numbers(image: &DirectoryImage) -> impl Iterator<Item = u64> {
    let tables = image.tenants.values().flat_map(|tenant| &tenant.tables);
    tables.map(|table| table.log).filter(|number| *number != 0)
}

impl Journal {
    /// Opens the journal of a folder, which need not have one, and reads it. Nothing is written yet. A tail that was
    /// never acknowledged is not read: [`Journal::replace`] writes a file without it.
    ///
    /// # Errors
    /// [`JournalError`]: another process has it; the file cannot be read, is open to others, damaged, or of a newer
    /// server.
    pub fn open(folder: &Path) -> Result<(Journal, DirectoryImage), JournalError> {
        let lock = lock(&folder.join(LOCK_FILE))?;
        let path = folder.join(JOURNAL_FILE);
        let mut journal = Journal {
            folder: folder.to_owned(),
            file: None,
            _lock: lock,
            bytes: 0,
            line: 0,
            replace_at: 0,
            log_numbers: HashSet::new(),
            cut: None,
            write_failure: None,
            #[cfg(test)]
            full: false,
        };
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((journal, DirectoryImage::default())),
            Err(error) => return Err(JournalError(format!("cannot read {}: {error}", path.display()))),
        };
        check_private(&path)?;
        let (state, whole, lines) = read(&bytes).map_err(|damage| damage.explain(&path))?;
        journal.log_numbers = log_numbers(&state).collect();
        let cut = &bytes[whole..];
        if !cut.is_empty() {
            let aside = folder.join(format!("{CUT_PREFIX}{}", now_ms()));
            tracing::warn!(
                "{}: it ends with {} bytes (from byte {whole} on) that are not a whole line. Either the server was killed, or the \
                 machine lost power, while it wrote a change: then the change was not acknowledged, and nothing is lost. \
                 Or the file was cut or damaged since: then changes after its line {lines} are missing, and what they revoked \
                 (tokens, grants, tenants) is valid again; compare with the expected state, or restore a whole copy. The \
                 bytes are kept in {}",
                path.display(),
                cut.len(),
                aside.display()
            );
            journal.cut = Some((aside, cut[..cut.len().min(TRUNCATED_FILE_BYTES)].to_vec()));
        }
        journal.bytes = whole as u64;
        Ok((journal, state))
    }

    /// Writes the result of a change, and waits until it is on the disk. `all` makes the whole state after the change,
    /// in case the file has to be replaced.
    pub(in super::super) fn record(
        &mut self,
        mut change: JournalEntry,
        all: impl FnOnce() -> DirectoryImage,
    ) -> Result<(), JournalError> {
        if let Some(why) = self.rests() {
            return Err(why);
        }
        let due = self.file.is_none();
        if due || self.bytes >= self.replace_at {
            let state = all();
            match self.replace(&state) {
                Ok(()) => return Ok(()),
                Err(error) if due => return Err(error),
                Err(error) => {
                    tracing::error!(%error, "the journal was not compacted and keeps growing");
                    self.replace_at = self.bytes.saturating_mul(2);
                }
            }
        }
        change.line = self.line + 1;
        let line = line(&change).map_err(|error| self.failed(&error))?;
        self.append(&line).map_err(|error| {
            // The content of the file is unknown now: the next change begins a new one.
            if let Some(file) = self.file.take() {
                let _also_failed = file.set_len(self.bytes).and_then(|()| file.sync_all());
            }
            let why = self.failed(&error);
            self.note_failure(why, &error, std::time::Duration::ZERO)
        })?;
        self.bytes += line.len() as u64;
        self.line = change.line;
        // The replacement may have failed, but changes are persisted.
        self.write_failure = None;
        Ok(())
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotConnected.into()) };
        file.write_all(line)?;
        file.sync_data()
    }

    /// Replaces the file atomically by one that contains only `state`.
    ///
    /// # Errors
    /// [`JournalError`]: the file cannot be written; the old file is still there, or the new one.
    pub fn replace(&mut self, state: &DirectoryImage) -> Result<(), JournalError> {
        let begun = Instant::now();
        let (file, (text, line)) = self.write_replacement(state).map_err(|error| {
            let why = self.failed(&error);
            self.note_failure(why, &error, begun.elapsed())
        })?;
        self.bytes = text.len() as u64;
        self.replace_at = (self.bytes * JOURNAL_GROWTH).max(JOURNAL_MIN_BYTES);
        (self.file, self.line) = (Some(file), line);
        if self.write_failure.take().is_some() {
            tracing::warn!("{} is written again; changes are made again", self.folder.join(JOURNAL_FILE).display());
        }
        Ok(())
    }

    fn write_replacement(&mut self, state: &DirectoryImage) -> io::Result<(File, (Vec<u8>, u64))> {
        #[cfg(test)]
        if self.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // Written before the file with these bytes is gone.
        if let Some((path, bytes)) = &self.cut {
            save_cut_tail(&self.folder, path, bytes)?;
            self.cut = None;
        }
        // It is made with mode 0600 and a temporary name.
        let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(&self.folder)?;
        let text = whole_file(state)?;
        file.write_all(&text.0)?;
        file.as_file().sync_all()?;
        // From here on the old file is not written to any more, even if the next steps fail.
        self.file = None;
        let mut file = file.persist(self.folder.join(JOURNAL_FILE)).map_err(|error| error.error)?;
        File::open(&self.folder)?.sync_all()?;
        file.seek(SeekFrom::End(0))?;
        Ok((file, text))
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> JournalError {
        let path = self.folder.join(JOURNAL_FILE);
        JournalError(format!("the change cannot be kept: writing {}: {error}", path.display()))
    }

    /// Notes and returns the reason that it could not be written.
    fn note_failure(&mut self, why: JournalError, error: &io::Error, took: std::time::Duration) -> JournalError {
        let (since_ms, logged) = self
            .write_failure
            .as_ref()
            .map_or_else(|| (now_ms(), None), |write_failure| (write_failure.since_ms, write_failure.logged));
        let (no_room, tried) = (is_disk_full(error), Instant::now());
        self.write_failure = Some(WriteFailure { why: why.clone(), since_ms, no_room, tried, took, logged });
        why
    }

    /// The reason not to try again yet, if there is one: the last attempt was slow and recent.
    fn rests(&self) -> Option<JournalError> {
        let write_failure = self
            .write_failure
            .as_ref()
            .filter(|write_failure| self.file.is_none() && write_failure.took > JOURNAL_SLOW_ATTEMPT)?;
        (write_failure.tried.elapsed() < write_failure.took.saturating_mul(JOURNAL_BACKOFF_FACTOR))
            .then(|| write_failure.why.clone())
    }

    /// The time from which changes are refused, in milliseconds since 1970, and the reason; `None` while they are made.
    pub fn write_failure(&self) -> Option<(u64, &JournalError)> {
        self.write_failure.as_ref().map(|write_failure| (write_failure.since_ms, &write_failure.why))
    }

    /// Whether a server may start although the file could not be replaced: it has the old state, and the disk is full.
    pub(in super::super) fn can_start_unwritable(&self) -> bool {
        self.bytes > 0 && self.write_failure.as_ref().is_some_and(|write_failure| write_failure.no_room)
    }

    /// Whether the file had the numbers in the log of all these tables when it was opened.
    pub(in super::super) fn has_log_numbers(&self, of: &DirectoryImage) -> bool {
        log_numbers(of).all(|number| self.log_numbers.contains(&number))
    }

    /// Whether it is time to try again without a change.
    pub(in super::super) fn is_due(&self) -> bool {
        self.write_failure.as_ref().is_some_and(|write_failure| write_failure.tried.elapsed() >= JOURNAL_RETRY)
            && self.rests().is_none()
    }

    /// Whether a refused change is to be logged: one from time to time.
    pub(in super::super) fn may_log(&mut self) -> bool {
        let Some(write_failure) = &mut self.write_failure else { return true };
        let due = write_failure.logged.is_none_or(|logged| logged.elapsed() >= JOURNAL_LOG_EVERY);
        if due {
            write_failure.logged = Some(Instant::now());
        }
        due
    }

    /// Simulates a full disk, or a disk with space again.
    #[cfg(test)]
    pub(in super::super) fn fill_disk(&mut self, full: bool) {
        self.full = full;
        if full {
            self.file = None;
        }
    }

    /// Simulates a failed write.
    #[cfg(test)]
    pub(in super::super) fn lose_file(&mut self) {
        self.file = None;
    }

    /// Sets the length at which the file is replaced.
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

impl JournalDamage {
    fn explain(&self, path: &Path) -> JournalError {
        let (shown, JournalDamage { line, at, what }) = (path.display(), self);
        JournalError(format!(
            "{shown} cannot be used: line {line}, at byte {at}: {what}; put the file back from a backup, or move it away to \
             start without the tenants, tokens and extensions that it holds"
        ))
    }
}

/// Locks the folder for a running server, or returns the reason that another one has it.
fn lock(path: &Path) -> Result<File, JournalError> {
    let failed = |error: &dyn std::fmt::Display| JournalError(format!("cannot lock {}: {error}", path.display()));
    let file = match fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path) {
        // The lock file of an earlier server: a read lock on it excludes other servers as well.
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(path),
        opened => opened,
    };
    let file = file.map_err(|error| failed(&error))?;
    // `sandstorm stop` looks whether the lock is free, and has it for that moment.
    let mut locked = file.try_lock();
    for _ in 0..LOCK_RETRIES {
        if !matches!(locked, Err(TryLockError::WouldBlock)) {
            break;
        }
        std::thread::sleep(LOCK_RETRY_INTERVAL);
        locked = file.try_lock();
    }
    match locked {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(JournalError(format!(
            "another server runs with this state directory (it holds {}); stop it, or choose another with --state, or say \
             --ephemeral to keep nothing",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => Err(failed(&error)),
    }
}

fn check_private(path: &Path) -> Result<(), JournalError> {
    let shown = path.display();
    let metadata = fs::metadata(path).map_err(|error| JournalError(format!("cannot look at {shown}: {error}")))?;
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(JournalError(format!("{shown} has mode {mode:o}: others could read it; run: chmod 600 {shown}")));
    }
    Ok(())
}

/// The part of a line before its JSON.
pub(super) fn line_head(json: &[u8]) -> String {
    let checksum = HEXLOWER.encode(&digest(&SHA256, json).as_ref()[..CHECKSUM_DIGITS / 2]);
    format!("{checksum} {:0LENGTH_DIGITS$x} ", json.len())
}

/// Whether a disk is only full at the moment, and not broken.
pub fn is_disk_full(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::StorageFull | Kind::QuotaExceeded | Kind::ReadOnlyFilesystem)
}

/// Saves bytes that are to be cut off. Of earlier files only the newest stay.
fn save_cut_tail(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    let is_cut = |name: &std::ffi::OsString| name.to_str().is_some_and(|name| name.starts_with(CUT_PREFIX));
    let mut names: Vec<_> =
        fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.file_name())).filter(is_cut).collect();
    // Their times have one length for some centuries.
    names.sort();
    let spare = names.len().saturating_sub(TRUNCATED_FILES);
    for name in names.into_iter().take(spare) {
        // A file that cannot be removed is removed the next time.
        let _left = fs::remove_file(folder.join(name));
    }
    Ok(())
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Whether bytes without zeros can be the beginning of line `number`.
fn begins_line(bytes: &[u8], number: u64) -> bool {
    let json = format!("{{\"line\":{number},");
    bytes.iter().enumerate().all(|(at, byte)| match at {
        CHECKSUM_DIGITS => *byte == b' ',
        at if at + 1 == LINE_HEAD => *byte == b' ',
        at if at < LINE_HEAD => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        at => json.as_bytes().get(at - LINE_HEAD).is_none_or(|expected| byte == expected),
    })
}

/// Whether the rest of a file is a half-written line `number`.
fn is_torn(rest: &[u8], number: u64) -> bool {
    if rest.contains(&0) {
        return true;
    }
    if rest.contains(&b'\n') || !begins_line(rest, number) {
        return false;
    }
    let Some(length) = rest.get(CHECKSUM_DIGITS + 1..CHECKSUM_DIGITS + 1 + LENGTH_DIGITS) else { return true };
    let length = std::str::from_utf8(length).ok().and_then(|digits| usize::from_str_radix(digits, 16).ok());
    length.is_some_and(|length| rest.len() < LINE_HEAD + length + 1)
}

fn line(what: &impl Serialize) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(what)?;
    Ok([line_head(&json).as_bytes(), &json, b"\n"].concat())
}

/// A file with `state`, and the number of its last line.
fn whole_file(state: &DirectoryImage) -> io::Result<(Vec<u8>, u64)> {
    let DirectoryImage { tenants, next_tenant, next_home } = state;
    let mut text = line(&JournalHeader { sandstorm_directory: FORMAT })?;
    let mut number = 0;
    // One line at least: the next tenant's id is persisted, too.
    for put in std::iter::once(vec![]).chain(tenants.values().map(|tenant| vec![tenant.clone()])) {
        number += 1;
        let change =
            JournalEntry { line: number, next_tenant: *next_tenant, next_home: *next_home, put, gone: Vec::new() };
        text.extend(line(&change)?);
    }
    Ok((text, number))
}

/// Reads a file: its state, the length of its whole lines, and their number.
/// Reads the bytes of a journal: returns the state, and the bytes that are whole lines. For backups: a server may be
/// writing it.
///
/// # Errors
/// [`JournalError`]: it is damaged, or of a newer server.
pub fn read_image(bytes: &[u8], path: &Path) -> Result<(DirectoryImage, usize), JournalError> {
    match read(bytes) {
        Ok((image, whole, _)) => Ok((image, whole)),
        Err(JournalDamage { line, at, what }) => {
            Err(JournalError(format!("{} is damaged in line {line}, at byte {at}: {what}", path.display())))
        }
    }
}

pub(super) fn read(bytes: &[u8]) -> Result<(DirectoryImage, usize, u64), JournalDamage> {
    let (mut state, mut number, mut at) = (DirectoryImage::default(), 0, 0);
    while at < bytes.len() {
        let damaged = |what: String| JournalDamage { line: number + 1, at, what };
        let length = bytes[at..].iter().position(|byte| *byte == b'\n');
        let (line, end) = length.map_or((&[][..], bytes.len()), |length| (&bytes[at..at + length], at + length + 1));
        let json = match line.split_at_checked(LINE_HEAD) {
            Some((start, json)) if start == line_head(json).as_bytes() => json,
            _ if number > 1 && end == bytes.len() && is_torn(&bytes[at..], number) => break,
            _ => return Err(damaged("it is not what was written (its checksum does not fit)".to_owned())),
        };
        if number == 0 {
            let head: JournalHeader = serde_json::from_slice(json).map_err(|error| damaged(error.to_string()))?;
            if head.sandstorm_directory != FORMAT {
                let found = head.sandstorm_directory;
                let what =
                    format!("it has format {found}, and this server knows format {FORMAT}: is it of a newer one?");
                return Err(damaged(what));
            }
        } else {
            let change: JournalEntry = serde_json::from_slice(json)
                .map_err(|error| damaged(format!("it is not understood ({error}): is it of a newer server?")))?;
            if change.line != number {
                return Err(damaged(format!("it says that it is line {}: lines are missing", change.line + 1)));
            }
            state.apply(change);
        }
        (number, at) = (number + 1, end);
    }
    // A new file is complete with its head and one line at least.
    if number < 2 {
        return Err(JournalDamage {
            line: number + 1,
            at,
            what: "the file ends before its first line does".to_owned(),
        });
    }
    Ok((state, at, number))
}
