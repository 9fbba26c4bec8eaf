//! Reads files of a log, or of a replica of one, again from the disk while they are in use, and checks them: each frame
//! with its checksum, its place and its position, and zeros between frames.
//!
//! A frame has its owner's checksum over all of its bytes, its log, its file and its offset. So a file whose frames are
//! intact, follow each other and end at the right place is what its owner has written. It need not be compared with the
//! owner's over the network.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;

use crate::change_log::ChangeLog;
use crate::disk::LogDisk;
use crate::error::LogError;
use crate::file_reader::{FrameRead, LogFileReader};
use crate::frame::{FRAME_HEADER_BYTES, FileHeader, FileKind, frame_bytes};
use crate::limits::BLOCK_BYTES;
use crate::replica::ReplicaFolder;

/// A file that is to be read again, and what has to be in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubbedFile {
    kind: FileKind,
    number: u64,
    log_id: u64,
    /// The position of its first frame, where that is known.
    first_position: Option<u64>,
    /// Its whole header, where that is known.
    header: Option<FileHeader>,
    end: ScrubEnd,
}

/// Where the frames of a file end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScrubEnd {
    /// With one that reaches this position.
    Position(u64),
    /// At this offset and position.
    Offset(u64, u64),
    /// With the last one of a checkpoint.
    LastFrame,
}

/// Damage of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubDamage {
    /// The path of the file.
    pub file: String,
    /// The byte in it at which the damaged piece begins.
    pub offset: u64,
    /// The difference from what has to be there.
    pub what: String,
    /// Whether it is in the zeros behind a header or a frame: all that the file says is as it was.
    pub is_padding: bool,
    /// The position of the damaged piece.
    position: u64,
}

impl std::fmt::Display for ScrubDamage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is damaged at byte {}: {}", self.file, self.offset, self.what)
    }
}

/// What a step has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScrubStep {
    /// So many bytes are sound.
    Sound(u64),
    /// All of the file is.
    End,
    /// It is damaged. It can be gone on with if that is in padding.
    Damage(ScrubDamage),
}

/// A file while it is read again.
pub struct FileScrub {
    file: ScrubbedFile,
    reader: LogFileReader,
    /// The position of the next frame.
    position: u64,
    is_header_checked: bool,
    is_whole: bool,
}

impl ScrubbedFile {
    pub(crate) fn name(&self) -> String {
        self.kind.file_name(self.number)
    }

    fn damage(&self, disk: &dyn LogDisk, (offset, position): (u64, u64), what: impl Into<String>) -> ScrubDamage {
        ScrubDamage { file: disk.path_of(&self.name()), offset, what: what.into(), is_padding: false, position }
    }

    /// Opens it. The inner error: it is damaged, or not there.
    ///
    /// # Errors
    /// [`LogError::System`]: this process cannot open it, which says nothing of the file.
    pub fn open(&self, disk: &dyn LogDisk) -> Result<Result<FileScrub, ScrubDamage>, LogError> {
        self.open_at(disk, None)
    }

    /// As [`ScrubbedFile::open`], to begin with the piece in which damage was found.
    ///
    /// # Errors
    /// As there.
    pub fn open_again(
        &self,
        disk: &dyn LogDisk,
        damage: &ScrubDamage,
    ) -> Result<Result<FileScrub, ScrubDamage>, LogError> {
        self.open_at(disk, Some((damage.offset, damage.position)).filter(|(offset, _)| *offset > 0))
    }

    fn open_at(
        &self,
        disk: &dyn LogDisk,
        frame: Option<(u64, u64)>,
    ) -> Result<Result<FileScrub, ScrubDamage>, LogError> {
        let header = self.header.unwrap_or(FileHeader {
            format: crate::frame::FORMAT,
            kind: self.kind,
            log_id: self.log_id,
            number: self.number,
            first_position: self.first_position.unwrap_or(0),
            made_ms: 0,
        });
        let name = self.name();
        let opened = disk.open(&name).and_then(|file| {
            file.forget_cached();
            LogFileReader::of_file(disk, file, header)
        });
        let mut reader = match opened {
            Ok(reader) => reader,
            Err(error) if is_of_process(&error) => return Err(LogError::system("read", disk.path_of(&name), &error)),
            Err(error) => return Ok(Err(self.damage(disk, (0, 0), format!("it cannot be opened: {error}")))),
        };
        let position = if self.kind == FileKind::Segment { header.first_position } else { 0 };
        let (offset, position) = frame.unwrap_or((BLOCK_BYTES, position));
        reader.offset = offset;
        let file = self.clone();
        Ok(Ok(FileScrub { file, reader, position, is_header_checked: frame.is_some(), is_whole: false }))
    }
}

/// Whether an error of opening a file is one of the process, and not of the file.
fn is_of_process(error: &std::io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR))
}

impl FileScrub {
    /// Reads the next piece: the header, or a frame.
    pub fn step(&mut self) -> ScrubStep {
        if !self.is_header_checked {
            self.is_header_checked = true;
            return self.check_header().map_or_else(ScrubStep::Damage, |()| ScrubStep::Sound(BLOCK_BYTES));
        }
        let offset = self.reader.offset;
        match self.file.end {
            ScrubEnd::Position(end) if self.position >= end => return self.ends(),
            ScrubEnd::Offset(end, position) if offset >= end => {
                let is_there = (offset, self.position) == (end, position);
                let is_whole = self.file.kind == FileKind::Segment || self.is_whole;
                return match is_there && is_whole {
                    true => self.ends(),
                    false => ScrubStep::Damage(self.damaged(offset, "its frames end elsewhere than they have to")),
                };
            }
            ScrubEnd::LastFrame if self.is_whole => return self.ends(),
            _ => {}
        }
        self.check_frame().map_or_else(ScrubStep::Damage, ScrubStep::Sound)
    }

    /// What was read does not stay in the system's memory: others need it more.
    fn ends(&self) -> ScrubStep {
        self.reader.forget_cached();
        ScrubStep::End
    }

    fn damaged(&self, offset: u64, what: impl Into<String>) -> ScrubDamage {
        let (file, position) = (self.reader.path.clone(), self.position);
        ScrubDamage { file, offset, what: what.into(), is_padding: false, position }
    }

    fn check_header(&mut self) -> Result<(), ScrubDamage> {
        let read = self.reader.bytes_at(0, BLOCK_BYTES as usize);
        let block = read.map_err(|error| self.damaged(0, error.to_string()))?;
        let found = FileHeader::decode(&block, self.file.kind, self.file.number, &self.reader.path);
        let found = found.map_err(|error| match error {
            LogError::Damaged { what, .. } => self.damaged(0, what),
            error => self.damaged(0, error.to_string()),
        })?;
        let is_other = self.file.header.is_some_and(|header| header != found)
            || found.log_id != self.file.log_id
            || self.file.first_position.is_some_and(|position| position != found.first_position);
        if is_other {
            return Err(self.damaged(0, "the header is that of another file"));
        }
        // Behind its checksum are zeros.
        if found.encode() != block {
            let what = "there are other bytes behind the header than zeros";
            return Err(ScrubDamage { is_padding: true, ..self.damaged(0, what) });
        }
        Ok(())
    }

    /// Returns the bytes of a sound frame. Behind one whose padding is damaged it is gone on.
    fn check_frame(&mut self) -> Result<u64, ScrubDamage> {
        let (offset, position) = (self.reader.offset, self.position);
        let frame = match self.reader.next_frame(position) {
            Ok(FrameRead::Frame(frame, _)) => frame,
            Ok(FrameRead::Nothing(why)) => return Err(self.damaged(offset, why)),
            Err(error) => return Err(self.damaged(offset, error.to_string())),
        };
        let (used, all) =
            (FRAME_HEADER_BYTES as u64 + u64::from(frame.payload_bytes), frame_bytes(frame.payload_bytes as usize));
        let padding = (all - used) as usize;
        let read = self.reader.bytes_at(offset + used, padding);
        let found = read.map_err(|error| self.damaged(offset, error.to_string()))?;
        let is_zero = found.len() == padding && found.iter().all(|byte| *byte == 0);
        let what = "there are other bytes behind the frame than zeros";
        let damage = (!is_zero).then(|| ScrubDamage { is_padding: true, ..self.damaged(offset, what) });
        self.position += u64::from(frame.payload_bytes);
        self.is_whole = frame.is_last;
        damage.map_or(Ok(all), Err)
    }
}

impl ReplicaFolder {
    /// The files that have their names, as they have to be on the disk. None once a write or sync has failed: what is
    /// there then is not known, and it is no damage.
    pub fn scrubbed_files(&self) -> Vec<ScrubbedFile> {
        if self.has_failed() {
            return Vec::new();
        }
        let all = self.published();
        let of = |(header, offset, position): (FileHeader, u64, u64)| ScrubbedFile {
            kind: header.kind,
            number: header.number,
            log_id: header.log_id,
            first_position: Some(header.first_position),
            header: Some(header),
            end: ScrubEnd::Offset(offset, position),
        };
        all.map(of).collect()
    }

    /// Whether it still has a file: it may be removed, or replaced, while it is read.
    pub fn has_file(&self, file: &ScrubbedFile) -> bool {
        self.published().any(|(header, ..)| Some(header) == file.header)
    }
}

impl ChangeLog {
    /// The files that a start would read, as they have to be on the disk: the newest checkpoint, and the segments that
    /// it needs.
    pub fn scrubbed_files(&self) -> Vec<ScrubbedFile> {
        let shared = self.shared();
        // First: segments that are begun behind it are not needed for it.
        let durable = self.durable();
        let (checkpoint, log_id) = (shared.checkpoint.load(Relaxed), shared.log_id);
        let needed_from = shared.needed_from.load(Relaxed);
        let segments = shared.first_positions.lock().clone();
        let mut files = Vec::with_capacity(segments.len() + 1);
        if checkpoint != 0 {
            let (kind, number, end) = (FileKind::Checkpoint, checkpoint, ScrubEnd::LastFrame);
            files.push(ScrubbedFile { kind, number, log_id, first_position: None, header: None, end });
        }
        for (at, (number, first_position)) in segments.iter().enumerate() {
            let later = segments.get(at + 1..).unwrap_or_default();
            // As a start reads them: the last one in which the checkpoint's position is, from its beginning, and all
            // behind.
            let is_superfluous = later.iter().any(|(_, position)| *position <= needed_from);
            // A later segment holds from its first position on.
            let end = later.iter().map(|(_, position)| *position).min().unwrap_or(durable).min(durable);
            if *first_position >= end || is_superfluous {
                continue;
            }
            let (kind, number, end) = (FileKind::Segment, *number, ScrubEnd::Position(end));
            let first_position = Some(*first_position);
            files.push(ScrubbedFile { kind, number, log_id, first_position, header: None, end });
        }
        files
    }

    /// Whether a start would still read a file.
    pub fn needs_file(&self, file: &ScrubbedFile) -> bool {
        let is_same = |one: &ScrubbedFile| {
            (one.kind, one.number, one.first_position) == (file.kind, file.number, file.first_position)
        };
        self.scrubbed_files().iter().any(is_same)
    }

    /// Has the log go on with a new segment if a file is the one that is written: a checkpoint from then on makes the
    /// file superfluous. Returns whether it is still written.
    pub fn leave_segment(&self, file: &ScrubbedFile) -> bool {
        let is_written = file.kind == FileKind::Segment && file.number == self.shared().segment.load(Relaxed);
        if is_written {
            self.shared().begin_segment();
        }
        is_written
    }

    /// The folder of its files.
    pub fn disk(&self) -> Arc<dyn LogDisk> {
        Arc::clone(&self.shared().disk)
    }
}
