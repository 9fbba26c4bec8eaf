//! Files of the log, block by block: a header, then frames. Every block is checked with its own address.
//!
//! ```text
//! file header, 64 bytes of a block of 4 KiB, the rest zero:
//!   magic "SANDSLOG" | format u32 | kind u32 | log id u64 | number u64 | first position u64 | made_ms u64
//!   | zero, 12 bytes | CRC-32C of these 60 bytes u32
//! frame, aligned to 4 KiB, padded with zeros:
//!   magic "SFRM" | format u16 | bits u16 | log id u64 | number u64 | offset u64 | position u64 | durable u64
//!   | payload_bytes u32 | age u32 | CRC-32C of the header so far, kind, and payload u32 | payload
//! ```
//! Bits: 1, the last frame of a checkpoint; 2, a unit begins with the payload. The age is that of the file when the
//! frame was written, in tenths of a second. Format 1 had neither age nor bit 2: zeros.
//!
//! A frame names its log, the file's number and its own offset, so one that was written to another place, or stayed
//! there from an earlier use, is no frame of this place. `position` counts bytes of payload since the log began, and
//! `durable` says up to which of them the log was on the disk when the frame was written. That of a checkpoint's last
//! frame is the position up to which the checkpoint may have seen changes; format 1 had 0 there.

use crate::change::{u32_at, u64_at};
use crate::error::LogError;
use crate::limits::{BLOCK_BYTES, FRAME_PAYLOAD_BYTES};

/// The format that is written here. Readers know this one and the one before; others are refused by name.
pub const FORMAT: u32 = 2;
/// The oldest format that is read.
pub const OLDEST_FORMAT: u32 = 1;
/// Bytes of a frame's header.
pub const FRAME_HEADER_BYTES: usize = 60;
const FILE_HEADER_BYTES: usize = 64;
const FILE_MAGIC: &[u8; 8] = b"SANDSLOG";
const FRAME_MAGIC: &[u8; 4] = b"SFRM";
/// The bit of a checkpoint's last frame.
const LAST_BIT: u16 = 1;
/// The bit of a frame with whose payload a unit begins.
const UNIT_BIT: u16 = 2;
/// Milliseconds of a unit of age: twice as fine as what is promised, and 13 years long.
const AGE_MS: u64 = 100;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A part of the log.
    Segment,
    /// The records of all tables; the log before its position is not needed.
    Checkpoint,
}

impl FileKind {
    pub(crate) fn number(self) -> u32 {
        match self {
            FileKind::Segment => 1,
            FileKind::Checkpoint => 2,
        }
    }

    /// Returns the beginning of the names of such files.
    pub fn prefix(self) -> &'static str {
        match self {
            FileKind::Segment => "log-",
            FileKind::Checkpoint => "checkpoint-",
        }
    }

    /// Returns the name of the file of that number.
    pub fn file_name(self, number: u64) -> String {
        format!("{}{number:016}", self.prefix())
    }

    /// Returns the number in a file's name, if it is one of this kind.
    pub fn number_of(self, name: &str) -> Option<u64> {
        let digits = name.strip_prefix(self.prefix())?;
        let is_plain = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_plain { digits.parse().ok() } else { None }
    }
}

/// The header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// Its format, [`FORMAT`] for a new one.
    pub format: u32,
    /// The kind of the file.
    pub kind: FileKind,
    /// A random number that all files of a log have.
    pub log_id: u64,
    /// The number of the file.
    pub number: u64,
    /// The position of the first byte of payload; of a checkpoint: that from which the log is needed.
    pub first_position: u64,
    /// The time at which it was made, in milliseconds since the Unix epoch.
    pub made_ms: u64,
}

impl FileHeader {
    /// Returns the file's first block.
    pub fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK_BYTES as usize);
        block.extend_from_slice(FILE_MAGIC);
        block.extend_from_slice(&self.format.to_le_bytes());
        block.extend_from_slice(&self.kind.number().to_le_bytes());
        for number in [self.log_id, self.number, self.first_position, self.made_ms] {
            block.extend_from_slice(&number.to_le_bytes());
        }
        block.resize(FILE_HEADER_BYTES - 4, 0);
        let crc = crc32c::crc32c(&block);
        block.extend_from_slice(&crc.to_le_bytes());
        block.resize(BLOCK_BYTES as usize, 0);
        block
    }

    /// Reads the first block of the file of that kind, number and path.
    ///
    /// # Errors
    /// [`LogError`]: it is none of them, or of a newer format.
    pub fn decode(block: &[u8], kind: FileKind, number: u64, path: &str) -> Result<FileHeader, LogError> {
        let damaged = |what: &str| LogError::damaged(path, 0, what);
        let format = u32_at(block, 8).filter(|_| block.starts_with(FILE_MAGIC));
        let format = format.ok_or_else(|| damaged("no header of a log's file"))?;
        let checked = block.get(..FILE_HEADER_BYTES - 4).unwrap_or_default();
        if u32_at(block, FILE_HEADER_BYTES - 4) != Some(crc32c::crc32c(checked)) {
            return Err(damaged("the checksum of the header is wrong"));
        }
        if format > FORMAT {
            return Err(LogError::Newer { file: path.to_owned(), format });
        }
        if format < OLDEST_FORMAT {
            return Err(LogError::Older { file: path.to_owned(), format });
        }
        let at = |offset| u64_at(block, offset).unwrap_or_default();
        let header = FileHeader { format, kind, log_id: at(16), number, first_position: at(32), made_ms: at(40) };
        if u32_at(block, 12) != Some(kind.number()) || at(24) != number {
            return Err(damaged("the header is that of another file"));
        }
        Ok(header)
    }
}

/// The place of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePlace {
    /// The kind of its file.
    pub kind: FileKind,
    /// The log.
    pub log_id: u64,
    /// The number of its file.
    pub number: u64,
    /// Its offset in the file.
    pub offset: u64,
}

/// The header of a frame, beside its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameHeader {
    /// The position of its first byte of payload.
    pub position: u64,
    /// The position up to which the log was on the disk when it was written.
    pub durable: u64,
    /// The bytes of its payload.
    pub payload_bytes: u32,
    /// Whether it is the last of a checkpoint.
    pub is_last: bool,
    /// Whether a unit begins with its payload. Frames of format 1 do not say it.
    pub begins_unit: bool,
    /// The age of its file when it was written, in tenths of a second. Frames of format 1 have 0.
    pub age: u32,
}

/// Returns the age of a file that was made at a time, in the unit of frames; both times in milliseconds since 1970.
pub fn file_age(made_ms: u64, now_ms: u64) -> u32 {
    u32::try_from(now_ms.saturating_sub(made_ms) / AGE_MS).unwrap_or(u32::MAX)
}

/// Returns the bytes that a frame with such a payload takes in its file.
pub fn frame_bytes(payload_bytes: usize) -> u64 {
    ((FRAME_HEADER_BYTES + payload_bytes) as u64).next_multiple_of(BLOCK_BYTES)
}

impl FrameHeader {
    /// Returns when it was written, in milliseconds since the Unix epoch, if its file was made at `made_ms`.
    pub fn written_ms(&self, made_ms: u64) -> u64 {
        made_ms + u64::from(self.age) * AGE_MS
    }

    /// Appends a frame.
    pub fn encode(&self, place: &FramePlace, payload: &[u8], into: &mut Vec<u8>) {
        self.encode_as(FORMAT, place, payload, into);
    }

    /// As [`FrameHeader::encode`] in one of the formats that are read.
    pub(crate) fn encode_as(&self, format: u32, place: &FramePlace, payload: &[u8], into: &mut Vec<u8>) {
        let start = into.len();
        let begins_unit = if self.begins_unit && format > 1 { UNIT_BIT } else { 0 };
        let age = if format > 1 { self.age } else { 0 };
        into.extend_from_slice(FRAME_MAGIC);
        into.extend_from_slice(&(format as u16).to_le_bytes());
        into.extend_from_slice(&(begins_unit | if self.is_last { LAST_BIT } else { 0 }).to_le_bytes());
        for number in [place.log_id, place.number, place.offset, self.position, self.durable] {
            into.extend_from_slice(&number.to_le_bytes());
        }
        into.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        into.extend_from_slice(&age.to_le_bytes());
        let crc = frame_crc(place.kind, &into[start..], payload);
        into.extend_from_slice(&crc.to_le_bytes());
        into.extend_from_slice(payload);
        into.resize(start + frame_bytes(payload.len()) as usize, 0);
    }

    /// Reads the header of the frame at a place from its first bytes, without its checksum. `None`: there is none.
    pub fn decode(bytes: &[u8], place: &FramePlace) -> Option<FrameHeader> {
        let at = |offset| u64_at(bytes, offset);
        let (format, bits) = (u32_at(bytes, 4)? & 0xffff, (u32_at(bytes, 4)? >> 16) as u16);
        let is_here = bytes.starts_with(FRAME_MAGIC)
            && (OLDEST_FORMAT..=FORMAT).contains(&format)
            && [at(8)?, at(16)?, at(24)?] == [place.log_id, place.number, place.offset];
        let (payload_bytes, age) = (u32_at(bytes, 48)?, u32_at(bytes, 52)?);
        let has_unknown = format == 1 && (age != 0 || bits & UNIT_BIT != 0) || bits & !(LAST_BIT | UNIT_BIT) != 0;
        if !is_here || has_unknown || payload_bytes as usize > FRAME_PAYLOAD_BYTES {
            return None;
        }
        let (is_last, begins_unit) = (bits & LAST_BIT != 0, bits & UNIT_BIT != 0);
        Some(FrameHeader { position: at(32)?, durable: at(40)?, payload_bytes, is_last, begins_unit, age })
    }

    /// Returns whether the checksum of a frame is right; `bytes` are its header and payload.
    pub fn is_intact(bytes: &[u8], kind: FileKind) -> bool {
        let Some((header, payload)) = bytes.split_at_checked(FRAME_HEADER_BYTES) else { return false };
        let checked = header.get(..FRAME_HEADER_BYTES - 4).unwrap_or_default();
        u32_at(header, FRAME_HEADER_BYTES - 4) == Some(frame_crc(kind, checked, payload))
    }
}

fn frame_crc(kind: FileKind, header: &[u8], payload: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(kind.number(), header);
    crc32c::crc32c_append(crc, payload)
}
