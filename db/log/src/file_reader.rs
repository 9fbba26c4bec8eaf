//! Reads a file of the log, frame by frame.

use std::sync::Arc;

use crate::disk::{LogDisk, LogFile};
use crate::error::LogError;
use crate::frame::{FRAME_HEADER_BYTES, FileHeader, FileKind, FrameHeader, FramePlace, frame_bytes};
use crate::limits::BLOCK_BYTES;
use crate::recent_frames::RecentFrames;

/// A file that is read.
pub(crate) struct LogFileReader {
    file: Box<dyn LogFile>,
    /// For errors.
    pub(crate) path: String,
    pub(crate) header: FileHeader,
    /// The bytes of the file.
    pub(crate) bytes: u64,
    /// The offset of the next frame.
    pub(crate) offset: u64,
    buffer: Vec<u8>,
    /// The last frames of a log that is written.
    recent: Option<Arc<RecentFrames>>,
}

/// The look at a frame's place.
pub(crate) enum FrameRead<'r> {
    /// An intact frame: its header, and all of its bytes.
    Frame(FrameHeader, FrameBytes<'r>),
    /// No intact frame: the reason.
    Nothing(&'static str),
}

/// An intact frame's bytes without the padding.
#[derive(Clone, Copy)]
pub(crate) struct FrameBytes<'r>(&'r [u8]);

impl<'r> FrameBytes<'r> {
    /// Returns header and payload.
    pub(crate) fn whole(self) -> &'r [u8] {
        self.0
    }

    /// Returns the payload.
    pub(crate) fn payload(self) -> &'r [u8] {
        self.0.get(FRAME_HEADER_BYTES..).unwrap_or_default()
    }
}

impl LogFileReader {
    /// Opens the file of that kind and number, and reads its header.
    ///
    /// # Errors
    /// [`LogError`].
    pub(crate) fn open(disk: &dyn LogDisk, kind: FileKind, number: u64) -> Result<LogFileReader, LogError> {
        let name = kind.file_name(number);
        let path = disk.path_of(&name);
        let failed = |error| LogError::system("read", path.clone(), &error);
        let file = disk.open(&name).map_err(failed)?;
        let bytes = file.bytes().map_err(failed)?;
        let mut block = vec![0; BLOCK_BYTES as usize];
        let read = file.read_at(0, &mut block).map_err(failed)?;
        let header = FileHeader::decode(block.get(..read).unwrap_or_default(), kind, number, &path)?;
        Ok(LogFileReader { file, path, header, bytes, offset: BLOCK_BYTES, buffer: Vec::new(), recent: None })
    }

    /// Opens a file whose header is known, or guessed.
    ///
    /// # Errors
    /// [`LogError::System`].
    pub(crate) fn open_as(disk: &dyn LogDisk, header: FileHeader) -> Result<LogFileReader, LogError> {
        let name = header.kind.file_name(header.number);
        let opened = disk.open(&name).and_then(|file| LogFileReader::of_file(disk, file, header));
        opened.map_err(|error| LogError::system("read", disk.path_of(&name), &error))
    }

    /// The reader of an open file whose header is known, or guessed.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn of_file(
        disk: &dyn LogDisk,
        file: Box<dyn LogFile>,
        header: FileHeader,
    ) -> std::io::Result<LogFileReader> {
        let (path, bytes) = (disk.path_of(&header.kind.file_name(header.number)), file.bytes()?);
        Ok(LogFileReader { file, path, header, bytes, offset: BLOCK_BYTES, buffer: Vec::new(), recent: None })
    }

    /// As [`LogFile::forget_cached`].
    pub(crate) fn forget_cached(&self) {
        self.file.forget_cached();
    }

    fn failed(&self, error: &std::io::Error) -> LogError {
        LogError::system("read", self.path.clone(), error)
    }

    /// The same, which finds the last frames of a segment in memory.
    pub(crate) fn with_recent(mut self, recent: &Arc<RecentFrames>) -> LogFileReader {
        self.recent = Some(Arc::clone(recent)).filter(|_| self.header.kind == FileKind::Segment);
        self
    }

    /// Fills the buffer from an offset; returns the bytes read.
    fn read_at(&mut self, offset: u64) -> Result<usize, LogError> {
        let number = self.header.number;
        let recent = self.recent.as_ref().and_then(|recent| recent.read_at(number, offset, &mut self.buffer));
        match recent {
            Some(read) => Ok(read),
            None => self.file.read_at(offset, &mut self.buffer).map_err(|error| self.failed(&error)),
        }
    }

    /// Reads the frame at an offset, whichever its position is.
    fn frame_at(&mut self, offset: u64) -> Result<FrameRead<'_>, LogError> {
        let FileHeader { kind, log_id, number, .. } = self.header;
        self.buffer.resize(FRAME_HEADER_BYTES, 0);
        let read = self.read_at(offset)?;
        self.buffer.truncate(read);
        let place = FramePlace { kind, log_id, number, offset };
        let Some(header) = FrameHeader::decode(&self.buffer, &place) else {
            return Ok(FrameRead::Nothing("there is no frame of this place"));
        };
        let whole = FRAME_HEADER_BYTES + header.payload_bytes as usize;
        self.buffer.resize(whole, 0);
        let read = self.read_at(offset)?;
        self.buffer.truncate(read);
        // Read twice, so the header is looked at again: another process may be writing.
        if read < whole || FrameHeader::decode(&self.buffer, &place) != Some(header) {
            return Ok(FrameRead::Nothing("the frame is cut off"));
        }
        if !FrameHeader::is_intact(&self.buffer, kind) {
            return Ok(FrameRead::Nothing("the checksum of the frame is wrong"));
        }
        Ok(FrameRead::Frame(header, FrameBytes(&self.buffer)))
    }

    /// Reads bytes as they are, whatever they are.
    ///
    /// # Errors
    /// [`LogError::System`].
    pub(crate) fn bytes_at(&self, offset: u64, bytes: usize) -> Result<Vec<u8>, LogError> {
        let mut found = vec![0; bytes];
        let read = self.file.read_at(offset, &mut found).map_err(|error| self.failed(&error))?;
        found.truncate(read);
        Ok(found)
    }

    /// Reads the next frame, which has to begin at `position`, and moves behind it.
    ///
    /// # Errors
    /// [`LogError::System`].
    pub(crate) fn next_frame(&mut self, position: u64) -> Result<FrameRead<'_>, LogError> {
        let offset = self.offset;
        let header = match self.frame_at(offset)? {
            FrameRead::Nothing(why) => return Ok(FrameRead::Nothing(why)),
            FrameRead::Frame(header, _) if header.position != position => {
                return Ok(FrameRead::Nothing("the frame is that of another position"));
            }
            FrameRead::Frame(header, _) => header,
        };
        self.offset += frame_bytes(header.payload_bytes as usize);
        // What was read is in the buffer still.
        Ok(FrameRead::Frame(header, FrameBytes(&self.buffer)))
    }

    /// Reads the header of the frame at the current offset, without its checksum. `None`: there is none.
    ///
    /// # Errors
    /// [`LogError::System`].
    pub(crate) fn peek_header(&mut self) -> Result<Option<FrameHeader>, LogError> {
        let FileHeader { kind, log_id, number, .. } = self.header;
        let mut bytes = [0; FRAME_HEADER_BYTES];
        let read = self.file.read_at(self.offset, &mut bytes).map_err(|error| self.failed(&error))?;
        let place = FramePlace { kind, log_id, number, offset: self.offset };
        Ok(FrameHeader::decode(bytes.get(..read).unwrap_or_default(), &place))
    }

    /// Moves behind the frame at the current offset, which has this header.
    pub(crate) fn skip(&mut self, header: &FrameHeader) {
        self.offset += frame_bytes(header.payload_bytes as usize);
    }

    /// Reads the frame at the current offset, whichever its position is, and moves behind it; behind a block where
    /// there is none.
    ///
    /// # Errors
    /// [`LogError::System`].
    pub(crate) fn next_frame_anywhere(&mut self) -> Result<FrameRead<'_>, LogError> {
        let offset = self.offset;
        self.offset += BLOCK_BYTES;
        let header = match self.frame_at(offset)? {
            FrameRead::Nothing(why) => return Ok(FrameRead::Nothing(why)),
            FrameRead::Frame(header, _) => header,
        };
        self.offset = offset + frame_bytes(header.payload_bytes as usize);
        Ok(FrameRead::Frame(header, FrameBytes(&self.buffer)))
    }

    /// Returns the offset behind the last intact frame from the current offset on; the current one if there is none.
    ///
    /// # Errors
    /// [`LogError::System`].
    pub(crate) fn last_frame_offset(&mut self) -> Result<u64, LogError> {
        let (mut last, mut offset) = (self.offset, self.offset);
        while offset < self.bytes {
            match self.frame_at(offset)? {
                FrameRead::Frame(header, _) => {
                    offset += frame_bytes(header.payload_bytes as usize);
                    last = offset;
                }
                FrameRead::Nothing(_) => offset += BLOCK_BYTES,
            }
        }
        Ok(last)
    }

    /// Returns the highest position that an intact frame behind the current offset says to be durable; 0: there is
    /// none.
    ///
    /// # Errors
    /// [`LogError::System`].
    pub(crate) fn promised_behind(&mut self) -> Result<u64, LogError> {
        let (mut promised, mut offset) = (0, self.offset + BLOCK_BYTES);
        while offset < self.bytes {
            let step = match self.frame_at(offset)? {
                FrameRead::Frame(header, _) => {
                    promised = promised.max(header.durable);
                    frame_bytes(header.payload_bytes as usize)
                }
                FrameRead::Nothing(_) => BLOCK_BYTES,
            };
            offset += step;
        }
        Ok(promised)
    }
}
