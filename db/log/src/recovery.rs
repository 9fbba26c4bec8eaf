//! Reads what an earlier server left: the newest checkpoint, then the log behind its position.
//!
//! A damaged frame ends the log only if no frame behind it, and no later segment, says that its position was on the
//! disk. Then it was being written when the server or the machine stopped, and was not acknowledged. Otherwise it is
//! damage, and nothing is read.
//!
//! The bytes behind the last position that is known to be on the disk are written again, to a new segment, before
//! a client sees them: a read may have come from memory of the system that never reached the disk.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::broken_rules::{RecoveryRule, is_broken};
use crate::change::{LoggedChange, UnitParse, parse_unit};
use crate::damaged_tables::TableNames;
use crate::disk::LogDisk;
use crate::error::LogError;
use crate::file_reader::{FrameBytes, FrameRead, LogFileReader};
use crate::frame::{FileHeader, FileKind, FrameHeader};
use crate::segment_writer::{NEW_PREFIX, SPARE_PREFIX};

/// A segment that is not open: a log may have more of them than a process may have files.
pub(crate) struct SegmentHead {
    pub(crate) header: FileHeader,
    path: String,
}

impl SegmentHead {
    pub(crate) fn read(disk: &dyn LogDisk, number: u64) -> Result<SegmentHead, LogError> {
        let LogFileReader { header, path, .. } = LogFileReader::open(disk, FileKind::Segment, number)?;
        Ok(SegmentHead { header, path })
    }

    pub(crate) fn open(&self, disk: &dyn LogDisk) -> Result<LogFileReader, LogError> {
        let reader = LogFileReader::open(disk, FileKind::Segment, self.header.number)?;
        let is_same = reader.header == self.header;
        if is_same { Ok(reader) } else { Err(LogError::unusable(&self.path, "it was replaced while it was read")) }
    }
}

/// The files of a log, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogFileNumbers {
    pub(crate) segments: Vec<u64>,
    pub(crate) checkpoints: Vec<u64>,
    /// Names of files that were never finished.
    pub(crate) unfinished: Vec<String>,
}

impl LogFileNumbers {
    /// Lists the files of a folder.
    ///
    /// # Errors
    /// [`LogError::System`].
    pub(crate) fn list(disk: &dyn LogDisk) -> Result<LogFileNumbers, LogError> {
        let mut files = LogFileNumbers::default();
        let names = disk.list().map_err(|error| LogError::system("list", disk.path_of(""), &error))?;
        for name in names {
            if let Some(number) = FileKind::Segment.number_of(&name) {
                files.segments.push(number);
            } else if let Some(number) = FileKind::Checkpoint.number_of(&name) {
                files.checkpoints.push(number);
            } else if name.starts_with(NEW_PREFIX) || name.starts_with(SPARE_PREFIX) {
                files.unfinished.push(name);
            }
        }
        files.segments.sort_unstable();
        files.checkpoints.sort_unstable();
        Ok(files)
    }
}

/// What was read of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Changes of the checkpoint.
    pub checkpoint_changes: u64,
    /// Units of the log behind it.
    pub units: u64,
    /// Changes of the log behind it.
    pub changes: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Bytes at the end that were being written when the server stopped, and were not acknowledged.
    pub torn_bytes: u64,
}

/// Receives a change, and whether it comes from the checkpoint.
pub type ChangeVisitor<'f> = dyn FnMut(&LoggedChange<'_>, bool) -> Result<(), LogError> + 'f;

/// A piece of a file that was read, and found intact.
pub(crate) enum LogPiece<'p> {
    /// The header of a file, whose frames follow.
    File(&'p FileHeader),
    /// A frame without its padding, and its offset in the file.
    Frame { file: &'p FileHeader, header: FrameHeader, bytes: FrameBytes<'p>, offset: u64 },
}

/// Receives pieces.
pub(crate) type PieceVisitor<'f> = dyn FnMut(&LogPiece<'_>) -> Result<(), LogError> + 'f;

/// A log that is being read, and the readers that see its changes.
struct LogReading<'r, 'v, 't> {
    visit: &'r mut ChangeVisitor<'v>,
    tap: &'r mut PieceVisitor<'t>,
    names: TableNames,
    summary: ReplaySummary,
}

/// The end of a log that was read, from which it goes on.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogEnd {
    /// The random number of the log; 0: there is none yet.
    pub(crate) log_id: u64,
    pub(crate) last_checkpoint: u64,
    /// The position from which the log is needed.
    pub(crate) needed_from: u64,
    /// The position up to which the checkpoint may have seen changes. `None`: it does not say it.
    pub(crate) seen: Option<u64>,
    /// Segments with their first positions.
    pub(crate) segments: Vec<(u64, u64)>,
    /// The position of the first byte of `tail`, where a unit begins.
    pub(crate) position: u64,
    /// Whole units that are not known to be on the disk.
    pub(crate) tail: Vec<u8>,
    pub(crate) summary: ReplaySummary,
}

impl LogEnd {
    /// Returns the number of the segment in which the log goes on. It is that of the last segment if nothing in there
    /// is needed beside `tail`: the new one takes its place in one step, so that a start does not cost a segment.
    /// Segments before the last one stay, since a crash between two removals would leave a gap, or hide the new one.
    pub(crate) fn next_segment(&self) -> u64 {
        match self.segments.last() {
            Some((number, first_position)) if *first_position >= self.position => *number,
            last => last.map_or(0, |(number, _)| *number) + 1,
        }
    }
}

/// A stream of units that comes in pieces.
struct UnitStream {
    /// The position of the first byte of `bytes`, where a unit begins.
    start: u64,
    bytes: Vec<u8>,
    /// The bytes of whole units, which were shown.
    shown: usize,
    /// Of each of them.
    unit_bytes: VecDeque<usize>,
    /// The position for which a checkpoint holds, where a unit begins: no byte before it is needed. 0: there is none.
    needed_from: u64,
}

impl UnitStream {
    /// A stream of what is needed behind `first_position`. A segment may begin within a unit; it is only the first one
    /// if the checkpoint has that unit.
    fn new(first_position: u64, needed_from: u64) -> UnitStream {
        let start = first_position.max(needed_from);
        UnitStream { start, bytes: Vec::new(), shown: 0, unit_bytes: VecDeque::new(), needed_from }
    }

    /// The position behind the last byte.
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Returns whether a piece may follow that begins at `position`: without a gap, or with bytes that are not needed.
    fn goes_on_at(&self, position: u64) -> bool {
        position == self.end() || position < self.needed_from && self.end() == self.needed_from
    }

    /// Adds a piece, and shows the units that it completes. Returns their number and that of their changes.
    fn push(&mut self, piece: &[u8], visit: &mut ChangeVisitor<'_>) -> Result<Option<(u64, u64)>, LogError> {
        self.bytes.extend_from_slice(piece);
        let (mut units, mut changes) = (0, 0);
        loop {
            match parse_unit(self.bytes.get(self.shown..).unwrap_or_default()) {
                UnitParse::Unit(mut unit, bytes) => {
                    units += 1;
                    changes += unit.changes();
                    unit.try_for_each(|change| visit(&change, false))?;
                    self.shown += bytes;
                    self.unit_bytes.push_back(bytes);
                }
                UnitParse::Incomplete => return Ok(Some((units, changes))),
                UnitParse::Malformed => return Ok(None),
            }
        }
    }

    /// Forgets the whole units that end at `position` at the latest.
    fn forget(&mut self, position: u64) {
        let mut gone = 0;
        while let Some(bytes) = self.unit_bytes.pop_front_if(|bytes| self.start + (gone + *bytes) as u64 <= position) {
            gone += bytes;
        }
        self.bytes.drain(..gone);
        (self.start, self.shown) = (self.start + gone as u64, self.shown - gone);
    }
}

/// Returns the bytes of the files that a start reads, at most: segments have zeros at their end.
///
/// # Errors
/// [`LogError::System`].
pub fn bytes_to_read(disk: &dyn LogDisk) -> Result<u64, LogError> {
    let files = LogFileNumbers::list(disk)?;
    let segments = files.segments.iter().map(|number| FileKind::Segment.file_name(*number));
    let checkpoint = files.checkpoints.last().map(|number| FileKind::Checkpoint.file_name(*number));
    let mut all = 0;
    for name in segments.chain(checkpoint) {
        let bytes = disk.open(&name).and_then(|file| file.bytes());
        all += bytes.map_err(|error| LogError::system("read", disk.path_of(&name), &error))?;
    }
    Ok(all)
}

/// Removes files that a checkpoint has made superfluous, or that were never finished. Segments that go on without a gap
/// stay for tails, until the next checkpoint looks how many are needed: returns their numbers and first positions.
pub(crate) fn remove_superfluous(disk: &dyn LogDisk, end: &LogEnd) -> Result<Vec<(u64, u64)>, LogError> {
    let files = LogFileNumbers::list(disk)?;
    let first = end.segments.first().copied();
    let before = files.segments.iter().filter(|number| Some(**number) < first.map(|(number, _)| number));
    let (mut older, mut gone, mut next) = (Vec::new(), Vec::new(), first);
    for number in before.rev() {
        let kept =
            next.filter(|(next, _)| end.last_checkpoint != 0 && number + 1 == *next).and_then(|(_, position)| {
                let header = LogFileReader::open(disk, FileKind::Segment, *number).ok()?.header;
                (header.log_id == end.log_id && header.first_position <= position)
                    .then_some((*number, header.first_position))
            });
        match kept {
            Some(kept) => older.insert(0, kept),
            None => gone.push(FileKind::Segment.file_name(*number)),
        }
        next = kept;
    }
    if end.last_checkpoint == 0 {
        gone.clear();
    }
    let checkpoints = files.checkpoints.iter().filter(|number| **number < end.last_checkpoint);
    let names = (gone.into_iter())
        .chain(checkpoints.map(|number| FileKind::Checkpoint.file_name(*number)))
        .chain(files.unfinished.iter().cloned());
    for name in names {
        disk.remove(&name).map_err(|error| LogError::system("remove", disk.path_of(&name), &error))?;
    }
    Ok(older)
}

/// Reads a log, and shows each change in an order in which they may be made.
///
/// # Errors
/// [`LogError`]: damage, a newer format, or an error of the system; or one that `visit` returns.
pub(crate) fn read_log(disk: &Arc<dyn LogDisk>, visit: &mut ChangeVisitor<'_>) -> Result<LogEnd, LogError> {
    read_log_pieces(disk, visit, &mut |_| Ok(()))
}

/// As [`read_log`], and shows the files' pieces as well, each before its changes.
///
/// # Errors
/// As there; or one that `tap` returns.
pub(crate) fn read_log_pieces(
    disk: &Arc<dyn LogDisk>,
    visit: &mut ChangeVisitor<'_>,
    tap: &mut PieceVisitor<'_>,
) -> Result<LogEnd, LogError> {
    let files = LogFileNumbers::list(&**disk)?;
    let mut end = LogEnd { seen: Some(0), ..LogEnd::default() };
    let mut reading = LogReading { visit, tap, names: TableNames::default(), summary: ReplaySummary::default() };
    let mut needed_from = None;
    if let Some(number) = files.checkpoints.last() {
        let mut reader = LogFileReader::open(&**disk, FileKind::Checkpoint, *number)?;
        let file = reader.header;
        let read = reading.checkpoint(&mut reader);
        let last = read.map_err(|error| reading.names.name_in(&**disk, &file, error))?;
        (end.log_id, end.last_checkpoint, needed_from) = (file.log_id, *number, Some(file.first_position));
        // Changes are seen behind the first byte of a log.
        end.seen = Some(last.durable).filter(|seen| *seen >= file.first_position);
    }
    let heads = read_heads(&**disk, &files.segments, needed_from)?;
    let Some(first) = needed_segments(disk, &heads, needed_from)? else { return Ok(end) };
    if end.log_id != 0 && end.log_id != first.1 {
        return Err(LogError::damaged(&first.2, 0, "it is of another log than the checkpoint"));
    }
    (end.log_id, end.segments) =
        (first.1, heads.iter().map(|head| (head.header.number, head.header.first_position)).collect());
    end.needed_from = needed_from.unwrap_or(first.0);
    // Before a file is read: that it does not go on in another log's would be told as the loss of what it lacks.
    if let Some(head) = heads.iter().find(|head| head.header.log_id != end.log_id) {
        return Err(LogError::damaged(&head.path, 0, "it is of another log than the segment before"));
    }
    let mut stream = UnitStream::new(first.0, needed_from.unwrap_or(0));
    for (head, limit) in with_limits(heads) {
        let mut reader = head.open(&**disk)?;
        (reading.tap)(&LogPiece::File(&reader.header))?;
        if limit.is_some_and(|limit| limit <= head.header.first_position) {
            continue;
        }
        let read = reading.segment(&mut reader, limit, &mut stream);
        read.map_err(|error| reading.names.name_in(&**disk, &head.header, error))?;
    }
    end.summary = reading.summary;
    end.summary.torn_bytes += (stream.bytes.len() - stream.shown) as u64;
    if !is_broken(RecoveryRule::UnitsAreWhole) {
        stream.bytes.truncate(stream.shown);
    }
    (end.position, end.tail) = (stream.start, stream.bytes);
    if is_broken(RecoveryRule::TailIsWrittenAgain) {
        end.position += end.tail.len() as u64;
        end.tail.clear();
    }
    Ok(end)
}

/// Returns each segment with the position from which on a later one holds; none for the last. A recovery may begin its
/// segment before the last one, where a unit begins that was not whole.
pub(crate) fn with_limits(heads: Vec<SegmentHead>) -> Vec<(SegmentHead, Option<u64>)> {
    let mut limit: Option<u64> = None;
    let mut limited: Vec<_> = (heads.into_iter().rev())
        .map(|head| {
            let own = limit;
            let first_position = head.header.first_position;
            limit = Some(own.map_or(first_position, |limit| limit.min(first_position)));
            (head, own)
        })
        .collect();
    limited.reverse();
    limited
}

/// Reads the headers of the segments that are needed, from the last one back to that in which the checkpoint's position
/// is. What is before it may be damaged: it stays for feeds only, and keeps no server from its start.
fn read_heads(disk: &dyn LogDisk, segments: &[u64], needed_from: Option<u64>) -> Result<Vec<SegmentHead>, LogError> {
    let mut heads = VecDeque::with_capacity(segments.len());
    for number in segments.iter().rev() {
        let head = SegmentHead::read(disk, *number)?;
        let has_position = needed_from.is_some_and(|from| head.header.first_position <= from);
        heads.push_front(head);
        if has_position {
            break;
        }
    }
    Ok(heads.into())
}

/// Looks whether the needed segments are there. Returns first position, log and path of the first one
/// left; `None` for a new log.
fn needed_segments(
    disk: &Arc<dyn LogDisk>,
    heads: &[SegmentHead],
    needed_from: Option<u64>,
) -> Result<Option<(u64, u64, String)>, LogError> {
    let missing = |number: u64| {
        let path = disk.path_of(&FileKind::Segment.file_name(number));
        LogError::damaged(&path, 0, "the file is not there, though the log needs it")
    };
    let from = needed_from.unwrap_or(0);
    let Some(first) = heads.first() else {
        return if needed_from.is_some() { Err(missing(1)) } else { Ok(None) };
    };
    if first.header.first_position > from && !is_broken(RecoveryRule::NeededSegmentsAreThere) {
        return Err(missing(first.header.number.saturating_sub(1)));
    }
    for pair in heads.windows(2) {
        if let [one, next] = pair
            && one.header.number + 1 != next.header.number
        {
            return Err(missing(one.header.number + 1));
        }
    }
    Ok(Some((first.header.first_position, first.header.log_id, first.path.clone())))
}

impl LogReading<'_, '_, '_> {
    /// Reads a checkpoint. Returns the header of its last frame.
    fn checkpoint(&mut self, reader: &mut LogFileReader) -> Result<FrameHeader, LogError> {
        let file = reader.header;
        (self.tap)(&LogPiece::File(&file))?;
        let (mut stream, mut position) = (UnitStream::new(0, 0), 0);
        loop {
            let offset = reader.offset;
            let (header, pushed) = match reader.next_frame(position)? {
                FrameRead::Nothing(why) => return Err(LogError::damaged(&reader.path, offset, why)),
                FrameRead::Frame(header, bytes) => {
                    (self.tap)(&LogPiece::Frame { file: &file, header, bytes, offset })?;
                    let (visit, names) = (&mut self.visit, &mut self.names);
                    let visit = &mut |change: &LoggedChange<'_>, _| {
                        names.note(change);
                        visit(change, true)
                    };
                    (header, stream.push(bytes.payload(), visit)?)
                }
            };
            let Some((_, changes)) = pushed else {
                return Err(LogError::damaged(&reader.path, offset, "the frame has no changes of this format"));
            };
            self.summary.checkpoint_changes += changes;
            self.summary.bytes += u64::from(header.payload_bytes);
            position += u64::from(header.payload_bytes);
            stream.forget(position);
            if header.is_last {
                if !stream.bytes.is_empty() {
                    return Err(LogError::damaged(&reader.path, offset, "it ends within a change"));
                }
                return Ok(header);
            }
        }
    }

    /// Reads a segment up to the position at which the next one begins; the last one to its end.
    fn segment(
        &mut self,
        reader: &mut LogFileReader,
        limit: Option<u64>,
        stream: &mut UnitStream,
    ) -> Result<(), LogError> {
        let file = reader.header;
        let mut position = file.first_position;
        if !stream.goes_on_at(position) && !is_broken(RecoveryRule::SegmentsGoOn) {
            return Err(LogError::damaged(&reader.path, 0, "its first position is not where the segment before ends"));
        }
        // Everything before a segment was synced before the segment was made.
        stream.forget(position);
        let mut is_second_look = false;
        loop {
            let (offset, path) = (reader.offset, reader.path.clone());
            let damaged = |what: &str| Err(LogError::damaged(&path, offset, what));
            let (header, pushed) = match reader.next_frame(position)? {
                FrameRead::Nothing(why) => {
                    let promised = match limit {
                        Some(_) if is_broken(RecoveryRule::SegmentsGoOn) => 0,
                        Some(limit) => limit,
                        None if is_broken(RecoveryRule::PromisedIsThere) => stream.needed_from,
                        None if is_broken(RecoveryRule::CheckpointBoundIsThere) => reader.promised_behind()?,
                        // A checkpoint promises the log up to its position.
                        None => reader.promised_behind()?.max(stream.needed_from),
                    };
                    if position >= promised {
                        return Ok(());
                    }
                    if is_second_look {
                        return damaged(why);
                    }
                    // A server that runs may have written the frame since, and then the one that promises it.
                    is_second_look = true;
                    continue;
                }
                FrameRead::Frame(header, bytes) => {
                    (self.tap)(&LogPiece::Frame { file: &file, header, bytes, offset })?;
                    let payload = bytes.payload();
                    let wanted = limit.map_or(payload.len() as u64, |limit| limit.saturating_sub(position));
                    let wanted = payload.get(..wanted as usize).unwrap_or(payload);
                    let known = stream.end().saturating_sub(position);
                    let (visit, names) = (&mut self.visit, &mut self.names);
                    let visit = &mut |change: &LoggedChange<'_>, is_of_checkpoint| {
                        names.note(change);
                        visit(change, is_of_checkpoint)
                    };
                    (header, stream.push(wanted.get(known as usize..).unwrap_or_default(), visit)?)
                }
            };
            is_second_look = false;
            let Some((units, changes)) = pushed else { return damaged("the frame has no changes of this format") };
            let summary = &mut self.summary;
            (summary.units, summary.changes) = (summary.units + units, summary.changes + changes);
            summary.bytes += u64::from(header.payload_bytes);
            position += u64::from(header.payload_bytes);
            stream.forget(header.durable);
            if limit.is_some_and(|limit| position >= limit) {
                return Ok(());
            }
        }
    }
}
