//! Writes the log's segments, one frame after the other. It has no thread and no lock of its own.
//!
//! A failed or short write, or a failed sync, is returned at once and never tried again: what the disk has then is
//! unknown, and a later success of the same call would prove nothing.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::disk::{LogDisk, LogFile};
use crate::error::LogError;
use crate::frame::{FORMAT, FRAME_HEADER_BYTES, FileHeader, FileKind, FrameHeader, FramePlace, file_age, frame_bytes};
use crate::limits::{
    BLOCK_BYTES, FRAME_PAYLOAD_BYTES, SPARE_MARGIN_BYTES, SPARE_RETRY, SPARE_RETRY_MOST, ZERO_WRITE_BYTES,
};
use crate::recent_frames::RecentFrames;

/// Beginning of the names of files that are being made.
pub(crate) const NEW_PREFIX: &str = ".new-";
/// Beginning of the names of segments that wait for their use.
pub(crate) const SPARE_PREFIX: &str = ".spare-";

/// A segment that is filled with zeros, for later use.
pub(crate) struct SpareSegment {
    file: Box<dyn LogFile>,
    name: String,
}

/// Makes a spare segment: afterwards the disk has room for its bytes.
///
/// # Errors
/// [`LogError::System`]; nothing of it is left then.
pub(crate) fn make_spare(disk: &dyn LogDisk, number: u64, bytes: u64) -> Result<SpareSegment, LogError> {
    let name = format!("{SPARE_PREFIX}{number:016}");
    let failed = |error| LogError::system("make", disk.path_of(&name), &error);
    let file = disk.create(&name).map_err(failed)?;
    let filled = fill_with_zeros(&*file, 0..bytes).and_then(|()| file.sync());
    match filled {
        Ok(()) => Ok(SpareSegment { file, name }),
        Err(error) => {
            // Its bytes are room for others.
            let _gone = disk.remove(&name);
            Err(failed(error))
        }
    }
}

/// Makes a spare segment in advance. Nothing is written if the disk says that it has no room for it: else each attempt
/// would fill a full disk, and empty it. `pause` becomes the time until the next attempt, and is that before.
///
/// # Errors
/// [`LogError::System`]; nothing of it is left then.
pub(crate) fn make_spare_with_margin(
    disk: &dyn LogDisk,
    number: u64,
    bytes: u64,
    pause: &mut Duration,
) -> Result<SpareSegment, LogError> {
    let longer = (*pause * 2).min(SPARE_RETRY_MOST);
    *pause = SPARE_RETRY;
    let failed = |error| LogError::system("make a segment in", disk.path_of(""), &error);
    if disk.free_bytes().map_err(failed)? < bytes + SPARE_MARGIN_BYTES {
        return Err(failed(std::io::ErrorKind::StorageFull.into()));
    }
    make_spare(disk, number, bytes).inspect_err(|_| *pause = longer)
}

/// Each part is on the disk before the next one is written: else the log's own writes would wait behind all of them.
pub(crate) fn fill_with_zeros(file: &dyn LogFile, range: Range<u64>) -> std::io::Result<()> {
    let most = (ZERO_WRITE_BYTES as u64).min(range.end - range.start) as usize;
    let mut buffer = FrameBuffer::default();
    let zeros = buffer.begin(most as u64);
    zeros.resize(zeros.len() + most, 0);
    let (zeros, mut offset) = (buffer.frames(), range.start);
    while offset < range.end {
        let part = zeros.get(..(range.end - offset) as usize).unwrap_or(zeros);
        if file.write_synced_at(offset, part)? != part.len() {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        offset += part.len() as u64;
    }
    Ok(())
}

/// Where a log goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentStart {
    pub(crate) log_id: u64,
    /// The number of the segment.
    pub(crate) number: u64,
    pub(crate) position: u64,
    /// Bytes of each segment.
    pub(crate) segment_bytes: u64,
}

/// The writer: see the head of this file.
pub(crate) struct SegmentWriter {
    disk: Arc<dyn LogDisk>,
    start: SegmentStart,
    file: Box<dyn LogFile>,
    path: String,
    /// The number of the segment that is written.
    number: u64,
    /// When it was begun, in milliseconds since the Unix epoch.
    made_ms: u64,
    /// The offset of the next frame.
    offset: u64,
    /// The position of the next byte.
    position: u64,
    /// The position up to which everything is on the disk.
    durable: u64,
    /// Segments that were begun since the last query, with their first positions.
    begun: Vec<(u64, u64)>,
    buffer: FrameBuffer,
    recent: Arc<RecentFrames>,
}

/// Frames that are being put together, at a multiple of a block in memory, as direct writes need it.
#[derive(Default)]
pub(crate) struct FrameBuffer {
    bytes: Vec<u8>,
    /// The first byte of the frames.
    start: usize,
}

impl FrameBuffer {
    /// Begins frames of so many bytes at most.
    pub(crate) fn begin(&mut self, most: u64) -> &mut Vec<u8> {
        self.bytes.clear();
        self.bytes.reserve(most as usize + BLOCK_BYTES as usize);
        self.start = self.bytes.as_ptr().align_offset(BLOCK_BYTES as usize);
        self.bytes.resize(self.start, 0);
        &mut self.bytes
    }

    /// Adds a frame, and zeros up to so many bytes.
    pub(crate) fn add(&mut self, frame: &[u8], whole: usize) {
        let end = self.bytes.len() + whole;
        self.bytes.extend_from_slice(frame);
        self.bytes.resize(end, 0);
    }

    pub(crate) fn frames(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
    }

    fn shrink(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(2 * FRAME_PAYLOAD_BYTES);
    }
}

impl SegmentWriter {
    /// Makes the first segment of a server's run, with `tail` in it. It is there, as a whole, once this returns.
    ///
    /// # Errors
    /// [`LogError`].
    pub(crate) fn start(disk: Arc<dyn LogDisk>, start: SegmentStart, tail: &[u8]) -> Result<SegmentWriter, LogError> {
        // Large enough for the tail, which may be as long as what can be pending.
        let bytes = start.segment_bytes.max(BLOCK_BYTES + whole_frames_bytes(tail.len()) + BLOCK_BYTES);
        let spare = make_spare(&*disk, start.number, bytes).map_err(|error| error.with_needed_bytes(bytes))?;
        let mut writer = SegmentWriter {
            path: disk.path_of(&spare.name),
            disk,
            start,
            file: spare.file,
            number: start.number,
            made_ms: now_ms(),
            offset: BLOCK_BYTES,
            position: start.position,
            durable: start.position,
            begun: Vec::new(),
            buffer: FrameBuffer::default(),
            recent: Arc::default(),
        };
        writer.start.segment_bytes = bytes;
        writer.write_header()?;
        writer.write_frames(tail, true)?;
        writer.publish(&spare.name)?;
        writer.start.segment_bytes = start.segment_bytes;
        (writer.position, writer.durable) = (start.position + tail.len() as u64, start.position + tail.len() as u64);
        Ok(writer)
    }

    /// Returns the frames that were written last.
    pub(crate) fn recent(&self) -> Arc<RecentFrames> {
        Arc::clone(&self.recent)
    }

    /// Returns the position up to which everything is on the disk.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// Returns the number of the segment that is written.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the segments that were begun since the last call, with their first positions.
    pub(crate) fn take_begun(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.begun)
    }

    /// Returns the bytes that are left in the segment.
    pub(crate) fn room(&self) -> u64 {
        self.start.segment_bytes.saturating_sub(self.offset)
    }

    /// Writes changes, and waits until they are on the disk. Takes `spare` when the segment is full. Nothing of them
    /// leaves an empty frame, which says how far the log is durable.
    ///
    /// # Errors
    /// [`LogError`]: nothing more may be written then.
    pub(crate) fn write(&mut self, changes: &[u8], spare: &mut Option<SpareSegment>) -> Result<(), LogError> {
        let (mut rest, mut begins_unit) = (changes, !changes.is_empty());
        loop {
            if self.room() < BLOCK_BYTES {
                self.roll(spare)?;
                continue;
            }
            let (now, later) = rest.split_at(rest.len().min(payload_room(self.room())));
            self.write_frames(now, begins_unit)?;
            (rest, begins_unit) = (later, false);
            if rest.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Goes on with a new segment. Its header promises that all before it is on the disk.
    pub(crate) fn roll(&mut self, spare: &mut Option<SpareSegment>) -> Result<(), LogError> {
        let number = self.number + 1;
        let spare = match spare.take() {
            Some(spare) => spare,
            None => make_spare(&*self.disk, number, self.start.segment_bytes)?,
        };
        (self.file, self.path) = (spare.file, self.disk.path_of(&spare.name));
        (self.number, self.offset, self.made_ms) = (number, BLOCK_BYTES, now_ms());
        self.begun.push((number, self.position));
        self.write_header()?;
        self.publish(&spare.name)
    }

    /// Writes the header of the segment, and waits until it is on the disk.
    fn write_header(&mut self) -> Result<(), LogError> {
        let header = FileHeader {
            format: FORMAT,
            kind: FileKind::Segment,
            log_id: self.start.log_id,
            number: self.number,
            first_position: self.position,
            made_ms: self.made_ms,
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.begin(BLOCK_BYTES).extend_from_slice(&header.encode());
        self.write_at(0, buffer.frames())?;
        self.buffer = buffer;
        Ok(())
    }

    /// Gives the segment its name.
    fn publish(&mut self, made_as: &str) -> Result<(), LogError> {
        let name = FileKind::Segment.file_name(self.number);
        let failed = |error| LogError::system("rename", self.disk.path_of(made_as), &error);
        self.disk.rename(made_as, &name).map_err(failed)?;
        self.disk.sync_folder().map_err(|error| LogError::system("sync", self.disk.path_of(""), &error))?;
        self.path = self.disk.path_of(&name);
        Ok(())
    }

    /// Writes changes as frames to this segment, which has room for them, and waits until they are on the disk. If
    /// there are none, it is an empty frame. `begins_unit`: they begin where a unit begins.
    fn write_frames(&mut self, changes: &[u8], mut begins_unit: bool) -> Result<(), LogError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let frames = buffer.begin(whole_frames_bytes(changes.len()));
        let (begin, age) = (frames.len(), file_age(self.made_ms, now_ms()));
        let (start, mut rest) = (self.offset, changes);
        loop {
            let (payload, later) = rest.split_at(rest.len().min(FRAME_PAYLOAD_BYTES));
            let offset = start + (frames.len() - begin) as u64;
            let place = FramePlace { kind: FileKind::Segment, log_id: self.start.log_id, number: self.number, offset };
            let payload_bytes = payload.len() as u32;
            let (position, durable) = (self.position, self.durable);
            let header = FrameHeader { position, durable, payload_bytes, is_last: false, begins_unit, age };
            header.encode(&place, payload, frames);
            begins_unit = false;
            self.position += payload.len() as u64;
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        self.write_at(start, buffer.frames())?;
        self.recent.note(self.number, start, buffer.frames());
        self.offset = start + buffer.frames().len() as u64;
        self.durable = self.position;
        buffer.shrink();
        self.buffer = buffer;
        Ok(())
    }

    /// Writes, and waits until it is on the disk.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), LogError> {
        let failed = |error| LogError::system("write", self.path.clone(), &error);
        let written = self.file.write_synced_at(offset, bytes).map_err(failed)?;
        if written == bytes.len() {
            return Ok(());
        }
        let text = format!("the disk took {written} of {} bytes", bytes.len());
        Err(failed(std::io::Error::other(text)))
    }
}

/// Returns the bytes of changes that fit into so many bytes of a segment, which are whole blocks.
fn payload_room(bytes: u64) -> usize {
    let largest = frame_bytes(FRAME_PAYLOAD_BYTES);
    let last = ((bytes % largest) as usize).saturating_sub(FRAME_HEADER_BYTES);
    (bytes / largest) as usize * FRAME_PAYLOAD_BYTES + last
}

/// Returns the bytes that changes take as frames of one segment, at most.
pub(crate) fn whole_frames_bytes(changes: usize) -> u64 {
    let frames = changes.div_ceil(FRAME_PAYLOAD_BYTES).max(1);
    frames as u64 * frame_bytes(FRAME_PAYLOAD_BYTES).min(frame_bytes(changes))
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
