//! Copies a log, also that of a running server, up to its end or to an earlier position: for backups and for restores.
//! It reads the log as a start does, so a damaged log is refused.

use std::sync::Arc;

use crate::disk::{LogDisk, LogFile};
use crate::error::LogError;
use crate::file_reader::FrameBytes;
use crate::frame::{FRAME_HEADER_BYTES, FileHeader, FileKind, FrameHeader, FramePlace, frame_bytes};
use crate::recovery::{LogEnd, LogFileNumbers, LogPiece, ReplaySummary, read_log_pieces};

/// Times that a copy is begun anew, since a checkpoint removed what it had not read yet. Checkpoints follow each other
/// more slowly than a copy reads.
const COPY_ATTEMPTS: u32 = 5;

/// Where a copy ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyEnd {
    /// With the log.
    #[default]
    All,
    /// At a position; a unit over it is left out.
    Position(u64),
    /// Before the first frame that was written later than this, in milliseconds since the Unix epoch.
    Time(u64),
}

/// A file of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedFile {
    /// Its name in the folder.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// The CRC-32C of them.
    pub crc32c: u32,
}

/// What was copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogCopy {
    /// The files, in the order in which they were written.
    pub files: Vec<CopiedFile>,
    /// The random number of the log; 0: there is none.
    pub log_id: u64,
    /// The first position at which a copy of this one may end. `None`: it cannot end earlier, since its checkpoint is
    /// of format 1.
    pub earliest: Option<u64>,
    /// When that was written, in milliseconds since the Unix epoch; 0: nothing was since.
    pub earliest_ms: u64,
    /// The position at which it ends.
    pub end: u64,
    /// When its last frame was written, in milliseconds since the Unix epoch; 0: it has none.
    pub end_ms: u64,
    /// What was read.
    pub summary: ReplaySummary,
}

/// A file that is being written.
struct TargetFile {
    file: Box<dyn LogFile>,
    copied: CopiedFile,
}

/// Writes the pieces of a log to a folder.
struct LogCopier<'d> {
    into: &'d dyn LogDisk,
    until: CopyEnd,
    current: Option<TargetFile>,
    files: Vec<CopiedFile>,
    /// The position at which it was cut off.
    cut: Option<u64>,
    /// The position up to which the checkpoint may have seen changes.
    seen: u64,
    /// When the first frame from there on was written.
    earliest_ms: u64,
    /// When the last frame was written of which something was copied.
    end_ms: u64,
    buffer: Vec<u8>,
}

/// Copies the log of a folder into another one, which is emptied.
///
/// # Errors
/// [`LogError`]: the log is damaged, the folders cannot be read or written, or the copy cannot end there.
pub fn copy_log(from: &Arc<dyn LogDisk>, into: &dyn LogDisk, until: CopyEnd) -> Result<LogCopy, LogError> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let before = LogFileNumbers::list(&**from)?;
        remove_all(into)?;
        match copy_once(from, into, until) {
            Err(error) if attempt < COPY_ATTEMPTS => {
                // Files that a checkpoint has removed meanwhile are no damage.
                if LogFileNumbers::list(&**from)?.checkpoints == before.checkpoints {
                    return Err(error);
                }
            }
            copied => return copied,
        }
    }
}

fn remove_all(folder: &dyn LogDisk) -> Result<(), LogError> {
    let files = LogFileNumbers::list(folder)?;
    let segments = files.segments.iter().map(|number| FileKind::Segment.file_name(*number));
    let names = segments.chain(files.checkpoints.iter().map(|number| FileKind::Checkpoint.file_name(*number)));
    for name in names.chain(files.unfinished.iter().cloned()) {
        folder.remove(&name).map_err(|error| LogError::system("remove", folder.path_of(&name), &error))?;
    }
    Ok(())
}

fn copy_once(from: &Arc<dyn LogDisk>, into: &dyn LogDisk, until: CopyEnd) -> Result<LogCopy, LogError> {
    let (current, files, buffer) = (None, Vec::new(), Vec::new());
    let mut copier = LogCopier { into, until, current, files, cut: None, seen: 0, earliest_ms: 0, end_ms: 0, buffer };
    let end = read_log_pieces(from, &mut |_, _| Ok(()), &mut |piece| match piece {
        LogPiece::File(header) => copier.begin(header),
        LogPiece::Frame { file, header, bytes, offset } => copier.frame(file, header, *bytes, *offset),
    })?;
    copier.end_file()?;
    into.sync_folder().map_err(|error| LogError::system("sync", into.path_of(""), &error))?;
    copier.outcome(&end, &from.path_of(""))
}

impl LogCopier<'_> {
    fn failed(&self, action: &'static str, name: &str, error: &std::io::Error) -> LogError {
        LogError::system(action, self.into.path_of(name), error)
    }

    fn begin(&mut self, header: &FileHeader) -> Result<(), LogError> {
        self.end_file()?;
        let is_behind = matches!(self.until, CopyEnd::Position(position) if header.first_position >= position);
        let has_segment = self.files.iter().any(|file| FileKind::Segment.number_of(&file.name).is_some());
        if header.kind == FileKind::Segment && is_behind && has_segment {
            self.cut = self.cut.or(Some(header.first_position));
        }
        if self.cut.is_some() {
            return Ok(());
        }
        let name = header.kind.file_name(header.number);
        let file = self.into.create(&name).map_err(|error| self.failed("make", &name, &error))?;
        self.current = Some(TargetFile { file, copied: CopiedFile { name, bytes: 0, crc32c: 0 } });
        self.write(&header.encode())
    }

    fn frame(
        &mut self,
        file: &FileHeader,
        header: &FrameHeader,
        bytes: FrameBytes<'_>,
        offset: u64,
    ) -> Result<(), LogError> {
        if self.cut.is_some() {
            return Ok(());
        }
        let mut whole = std::mem::take(&mut self.buffer);
        whole.clear();
        whole.extend_from_slice(bytes.whole());
        if file.kind == FileKind::Segment {
            let written_ms = header.written_ms(file.made_ms);
            let end = header.position + u64::from(header.payload_bytes);
            self.cut = match self.until {
                CopyEnd::Position(position) if end > position => Some(position),
                CopyEnd::Time(time_ms) if written_ms > time_ms => Some(header.position),
                _ => None,
            };
            if self.earliest_ms == 0 && header.position >= self.seen {
                self.earliest_ms = written_ms;
            }
            if self.cut.is_none_or(|cut| cut > header.position) {
                self.end_ms = written_ms;
            }
            if let Some(position) = self.cut {
                whole.clear();
                let kept = bytes.payload().get(..position.saturating_sub(header.position) as usize).unwrap_or_default();
                let FileHeader { kind, log_id, number, .. } = *file;
                let place = FramePlace { kind, log_id, number, offset };
                FrameHeader { payload_bytes: kept.len() as u32, ..*header }.encode(&place, kept, &mut whole);
            }
        }
        if header.is_last {
            self.seen = header.durable;
        }
        let payload_bytes = whole.len().saturating_sub(FRAME_HEADER_BYTES);
        whole.resize((frame_bytes(payload_bytes) as usize).max(whole.len()), 0);
        let written = self.write(&whole);
        self.buffer = whole;
        written
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), LogError> {
        let Some(TargetFile { file, copied }) = &mut self.current else { return Ok(()) };
        let written = file.write_at(copied.bytes, bytes);
        let short = || std::io::ErrorKind::StorageFull.into();
        let written = written.and_then(|taken| if taken == bytes.len() { Ok(()) } else { Err(short()) });
        copied.bytes += bytes.len() as u64;
        copied.crc32c = crc32c::crc32c_append(copied.crc32c, bytes);
        let name = copied.name.clone();
        written.map_err(|error| self.failed("write", &name, &error))
    }

    fn end_file(&mut self) -> Result<(), LogError> {
        let Some(TargetFile { file, copied }) = self.current.take() else { return Ok(()) };
        file.sync().map_err(|error| self.failed("sync", &copied.name, &error))?;
        self.files.push(copied);
        Ok(())
    }

    /// Checks that the copy is one that can be read.
    fn outcome(self, end: &LogEnd, from: &str) -> Result<LogCopy, LogError> {
        let last = end.position + end.tail.len() as u64;
        let earliest = end.seen;
        let (earliest_ms, end_ms) = (self.earliest_ms, self.end_ms);
        let refused = |why: String| Err(LogError::unusable(from, &why));
        match (self.cut, earliest) {
            (Some(_), None) => {
                return refused("its checkpoint is of format 1, which does not say how far back one may go".to_owned());
            }
            (Some(cut), Some(earliest)) if cut < earliest => {
                let when =
                    if earliest_ms == 0 { String::new() } else { format!(", written {earliest_ms} ms after 1970") };
                return refused(format!("it goes back to position {earliest}{when}, and no further"));
            }
            _ => {}
        }
        if let CopyEnd::Position(position) = self.until
            && position > last
        {
            return refused(format!("it ends at position {last}"));
        }
        let cut = self.cut.unwrap_or(last);
        Ok(LogCopy {
            files: self.files,
            log_id: end.log_id,
            earliest,
            earliest_ms,
            end: cut,
            end_ms,
            summary: end.summary,
        })
    }
}
