//! What is sent to a replica of a log, and the file in which a replica keeps its promise.
//!
//! ```text
//! batch:   magic "SBAT" | format u32 | items | CRC-32C of all before u32
//! begin:   1 u8 | kind u8 | number u64 | the 64 bytes of the file's header
//! frame:   2 u8 | kind u8 | number u64 | offset u64 | bytes u32 | the frame without its padding
//! publish: 3 u8 | kind u8 | number u64
//! promise: magic "SANDCOPY" | format u32 | bits u32 | log id u64 | epoch u64 | zero, 28 bytes | CRC-32C u32
//! ```
//! Numbers are little-endian; kinds are those of the log's files. Bit 1 of a promise: it is sealed.

use crate::change::{u32_at, u64_at};
use crate::error::LogError;
use crate::frame::{FRAME_HEADER_BYTES, FileHeader, FileKind};
use crate::limits::FRAME_PAYLOAD_BYTES;

/// The format that is written here. Another one is refused.
pub(crate) const REPLICA_FORMAT: u32 = 1;
/// The file with the promise.
pub(crate) const PROMISE_FILE: &str = "promise";
/// Bytes of a promise.
pub(crate) const PROMISE_BYTES: usize = 64;
const BATCH_MAGIC: &[u8; 4] = b"SBAT";
const PROMISE_MAGIC: &[u8; 8] = b"SANDCOPY";
const SEALED_BIT: u32 = 1;
/// Bytes of a file's header that are sent; the rest of its block is zero.
const HEADER_BYTES: usize = 64;
const CRC_BYTES: usize = 4;

/// A piece of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchItem<'b> {
    /// A file begins, which no reader sees yet.
    Begin(FileHeader),
    /// The next frame of a file.
    Frame { kind: FileKind, number: u64, offset: u64, bytes: &'b [u8] },
    /// The file gets its name.
    Publish(FileKind, u64),
}

/// Pieces of a log's files, in the order in which a replica takes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaBatch {
    bytes: Vec<u8>,
}

impl Default for ReplicaBatch {
    fn default() -> ReplicaBatch {
        let mut bytes = BATCH_MAGIC.to_vec();
        bytes.extend_from_slice(&REPLICA_FORMAT.to_le_bytes());
        ReplicaBatch { bytes }
    }
}

impl ReplicaBatch {
    /// Returns whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == BATCH_MAGIC.len() + 4
    }

    /// Returns the bytes so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    fn head(&mut self, tag: u8, kind: FileKind, number: u64) {
        self.bytes.extend_from_slice(&[tag, kind.number() as u8]);
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    pub(crate) fn begin(&mut self, header: &FileHeader) {
        self.head(1, header.kind, header.number);
        self.bytes.extend_from_slice(header.encode().get(..HEADER_BYTES).unwrap_or_default());
    }

    pub(crate) fn frame(&mut self, (kind, number): (FileKind, u64), offset: u64, bytes: &[u8]) {
        self.head(2, kind, number);
        self.bytes.extend_from_slice(&offset.to_le_bytes());
        self.bytes.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn publish(&mut self, kind: FileKind, number: u64) {
        self.head(3, kind, number);
    }

    /// Returns what is sent.
    pub fn encode(&self) -> Vec<u8> {
        let crc = crc32c::crc32c(&self.bytes);
        let mut sent = Vec::with_capacity(self.bytes.len() + CRC_BYTES);
        sent.extend_from_slice(&self.bytes);
        sent.extend_from_slice(&crc.to_le_bytes());
        sent
    }

    /// Reads what was sent. `None`: it is damaged, or of another format.
    pub fn decode(sent: &[u8]) -> Option<ReplicaBatch> {
        let (bytes, crc) = sent.split_at_checked(sent.len().checked_sub(CRC_BYTES)?)?;
        let is_known = bytes.starts_with(BATCH_MAGIC) && u32_at(bytes, 4) == Some(REPLICA_FORMAT);
        let is_intact = u32_at(crc, 0) == Some(crc32c::crc32c(bytes));
        (is_known && is_intact).then(|| ReplicaBatch { bytes: bytes.to_vec() })
    }

    /// Its pieces; `None` in place of one that is malformed, which is the last.
    pub(crate) fn items(&self) -> impl Iterator<Item = Option<BatchItem<'_>>> {
        let mut rest = self.bytes.get(BATCH_MAGIC.len() + 4..).unwrap_or_default();
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let read = read_item(rest);
            rest = read.map_or(&[], |(_, rest)| rest);
            Some(read.map(|(item, _)| item))
        })
    }
}

fn kind_of(number: u8) -> Option<FileKind> {
    [FileKind::Segment, FileKind::Checkpoint].into_iter().find(|kind| kind.number() == u32::from(number))
}

/// A piece from the front of `bytes`, and the rest.
fn read_item(bytes: &[u8]) -> Option<(BatchItem<'_>, &[u8])> {
    let (head, rest) = bytes.split_at_checked(10)?;
    let (kind, number) = (kind_of(*head.get(1)?)?, u64_at(head, 2)?);
    match head.first()? {
        1 => {
            let (header, rest) = rest.split_at_checked(HEADER_BYTES)?;
            Some((BatchItem::Begin(FileHeader::decode(header, kind, number, "").ok()?), rest))
        }
        2 => {
            let (place, rest) = rest.split_at_checked(12)?;
            let length = u32_at(place, 8)? as usize;
            if length > FRAME_HEADER_BYTES + FRAME_PAYLOAD_BYTES {
                return None;
            }
            let (bytes, rest) = rest.split_at_checked(length)?;
            Some((BatchItem::Frame { kind, number, offset: u64_at(place, 0)?, bytes }, rest))
        }
        3 => Some((BatchItem::Publish(kind, number), rest)),
        _ => None,
    }
}

/// What a replica has promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplicaPromise {
    /// The log of which it is a replica; 0: of none yet.
    pub(crate) log_id: u64,
    /// It takes nothing of an earlier epoch.
    pub(crate) epoch: u64,
    /// It takes nothing any more.
    pub(crate) is_sealed: bool,
}

impl ReplicaPromise {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = PROMISE_MAGIC.to_vec();
        bytes.extend_from_slice(&REPLICA_FORMAT.to_le_bytes());
        bytes.extend_from_slice(&(if self.is_sealed { SEALED_BIT } else { 0 }).to_le_bytes());
        bytes.extend_from_slice(&self.log_id.to_le_bytes());
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.resize(PROMISE_BYTES - CRC_BYTES, 0);
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the file of that path.
    ///
    /// # Errors
    /// [`LogError`]: it is damaged, or of a newer format.
    pub(crate) fn decode(bytes: &[u8], path: &str) -> Result<ReplicaPromise, LogError> {
        let damaged = |what: &str| LogError::damaged(path, 0, what);
        let checked = bytes.get(..PROMISE_BYTES - CRC_BYTES).unwrap_or_default();
        let crc = u32_at(bytes, PROMISE_BYTES - CRC_BYTES);
        if !bytes.starts_with(PROMISE_MAGIC) || bytes.len() != PROMISE_BYTES || crc != Some(crc32c::crc32c(checked)) {
            return Err(damaged("the promise of this copy is damaged: the copy counts for nothing"));
        }
        let at = |offset| u32_at(bytes, offset).unwrap_or_default();
        match at(8) {
            REPLICA_FORMAT if at(12) & !SEALED_BIT == 0 => {}
            REPLICA_FORMAT => return Err(damaged("the promise of this copy has unknown bits")),
            format => return Err(LogError::Newer { file: path.to_owned(), format }),
        }
        let (log_id, epoch) = (u64_at(bytes, 16).unwrap_or_default(), u64_at(bytes, 24).unwrap_or_default());
        Ok(ReplicaPromise { log_id, epoch, is_sealed: at(12) & SEALED_BIT != 0 })
    }
}
