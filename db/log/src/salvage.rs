//! The intact part of a damaged log, as a new log: a checkpoint of all changes that were found whole, and an empty
//! segment. Only intact frames count, and only units whose every byte is in them. So no wrong change is taken; but
//! changes in a gap are missing: a record may have an older value, or a deleted one may be back.

use std::sync::Arc;

use crate::change::{LoggedChange, UnitParse, parse_unit};
use crate::checkpoint_file::CheckpointFile;
use crate::disk::LogDisk;
use crate::error::LogError;
use crate::file_reader::{FrameRead, LogFileReader};
use crate::frame::{FORMAT, FileHeader, FileKind, FrameHeader};
use crate::limits::BLOCK_BYTES;
use crate::options::LogOptions;
use crate::recovery::LogFileNumbers;
use crate::segment_writer::{SegmentStart, SegmentWriter};

/// A part of a file that could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// The file.
    pub file: String,
    /// The first byte in it.
    pub from: u64,
    /// The byte behind the last one.
    pub to: u64,
    /// The reason.
    pub why: String,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvagedLog {
    /// Changes that were taken.
    pub changes: u64,
    /// What could not be used, in the order of the files.
    pub lost: Vec<LostRange>,
}

/// Writes what is sound of a log as a new log into another folder, which has none, and shows each change.
///
/// # Errors
/// [`LogError`]: the folders cannot be read or written; a file is of a newer format; or one that `visit` returns.
pub fn salvage_log(
    from: &Arc<dyn LogDisk>,
    into: &Arc<dyn LogDisk>,
    options: LogOptions,
    visit: &mut dyn FnMut(&LoggedChange<'_>) -> Result<(), LogError>,
) -> Result<SalvagedLog, LogError> {
    let log_id = rand::random::<u64>().max(1);
    let mut checkpoint = CheckpointFile::begin(into, log_id, 1, 0)?;
    let mut salvage = LogSalvage {
        disk: from,
        found: SalvagedLog::default(),
        stream: SalvagedStream::default(),
        take: &mut |change| {
            visit(change)?;
            checkpoint.push(change)
        },
    };
    salvage.run()?;
    let found = salvage.found;
    // The segment comes first: a checkpoint without its log is damage.
    let start = SegmentStart { log_id, number: 1, position: 0, segment_bytes: options.segment_bytes };
    SegmentWriter::start(Arc::clone(into), start, b"")?;
    checkpoint.finish(0)?;
    checkpoint.publish()?;
    Ok(found)
}

/// The bytes of units that are put together.
#[derive(Default)]
struct SalvagedStream {
    /// Bytes of a unit that is not whole.
    partial: Vec<u8>,
    /// The position behind them, or that from which the log is needed. `None`: it is not known where a unit begins.
    end: Option<u64>,
}

struct LogSalvage<'s> {
    disk: &'s Arc<dyn LogDisk>,
    found: SalvagedLog,
    stream: SalvagedStream,
    take: &'s mut dyn FnMut(&LoggedChange<'_>) -> Result<(), LogError>,
}

impl LogSalvage<'_> {
    fn run(&mut self) -> Result<(), LogError> {
        let files = LogFileNumbers::list(&**self.disk)?;
        let (mut heads, mut log_id) = (Vec::with_capacity(files.segments.len()), None);
        for number in &files.segments {
            let header = self.open(FileKind::Segment, *number)?.ok().map(|reader| reader.header);
            log_id = log_id.or(header.map(|header| header.log_id));
            heads.push((*number, header));
        }
        // Without a checkpoint the first segment is the log's beginning.
        self.stream.end = heads.first().and_then(|(_, header)| *header).map(|header| header.first_position);
        if let Some(number) = files.checkpoints.last() {
            let opened = self.open_or_guess(FileKind::Checkpoint, *number, log_id)?;
            if let Some((mut reader, is_guess)) = opened {
                log_id = Some(reader.header.log_id);
                self.stream.end = Some(0);
                self.checkpoint(&mut reader)?;
                let from = (!is_guess).then_some(reader.header.first_position);
                self.stream = SalvagedStream { partial: Vec::new(), end: from };
            }
        }
        self.segments(&heads, log_id)
    }

    /// Opens a file. If its header is damaged, it is opened all the same, if the log's number is known: its frames say
    /// themselves where they belong.
    fn open_or_guess(
        &mut self,
        kind: FileKind,
        number: u64,
        log_id: Option<u64>,
    ) -> Result<Option<(LogFileReader, bool)>, LogError> {
        let lost = match self.open(kind, number)? {
            Ok(reader) => return Ok(Some((reader, false))),
            Err(lost) => lost,
        };
        self.found.lost.push(lost);
        let Some(log_id) = log_id else { return Ok(None) };
        let header = FileHeader { format: FORMAT, kind, log_id, number, first_position: 0, made_ms: 0 };
        Ok(Some((LogFileReader::open_as(&**self.disk, header)?, true)))
    }

    /// Opens a file; the inner error: its header cannot be used.
    fn open(&self, kind: FileKind, number: u64) -> Result<Result<LogFileReader, LostRange>, LogError> {
        match LogFileReader::open(&**self.disk, kind, number) {
            Ok(reader) => Ok(Ok(reader)),
            Err(LogError::Damaged { file, offset, what }) => {
                Ok(Err(LostRange { file, from: offset, to: offset + BLOCK_BYTES, why: what }))
            }
            Err(error) => Err(error),
        }
    }

    fn lose(&mut self, file: &str, (from, to): (u64, u64), why: &str) {
        // Block after block that is not intact is one range.
        if let Some(last) = self.found.lost.last_mut()
            && last.file == file
            && last.to == from
            && last.why == why
        {
            last.to = to;
            return;
        }
        self.found.lost.push(LostRange { file: file.to_owned(), from, to, why: why.to_owned() });
    }

    fn checkpoint(&mut self, reader: &mut LogFileReader) -> Result<(), LogError> {
        self.stream = SalvagedStream { partial: Vec::new(), end: Some(0) };
        while reader.offset < reader.bytes {
            let Some(header) = self.next_frame(reader, None)? else { continue };
            if header.is_last {
                return Ok(());
            }
        }
        let path = reader.path.clone();
        self.lose(&path, (reader.offset, reader.offset), "its end is missing");
        Ok(())
    }

    fn segments(&mut self, heads: &[(u64, Option<FileHeader>)], log_id: Option<u64>) -> Result<(), LogError> {
        let mut number_before = None;
        for (at, (number, header)) in heads.iter().enumerate() {
            // As a start reads it: where a later segment begins earlier, the later one holds.
            let later = heads.get(at + 1..).unwrap_or_default();
            let limit = later.iter().filter_map(|(_, header)| *header).map(|header| header.first_position).min();
            if let Some(before) = number_before
                && *number != before + 1
            {
                let path = self.disk.path_of(&FileKind::Segment.file_name(before + 1));
                self.lose(&path, (0, 0), "the file is not there");
            }
            number_before = Some(*number);
            let is_behind = |position: u64| limit.is_some_and(|limit| limit <= position);
            if header.is_some_and(|header| is_behind(header.first_position)) || self.stream.end.is_some_and(is_behind) {
                continue;
            }
            let Some((mut reader, is_guess)) = self.open_or_guess(FileKind::Segment, *number, log_id)? else {
                continue;
            };
            if Some(reader.header.log_id) != log_id {
                let (path, bytes) = (reader.path.clone(), reader.bytes);
                self.lose(&path, (0, bytes), "it is of another log");
                continue;
            }
            if is_guess {
                // It may begin before the end of the one before it, with something else than was there.
                self.stream = SalvagedStream::default();
            }
            self.segment(&mut reader, limit)?;
        }
        Ok(())
    }

    fn segment(&mut self, reader: &mut LogFileReader, limit: Option<u64>) -> Result<(), LogError> {
        let (path, last, mut end) = (reader.path.clone(), reader.last_frame_offset()?, 0);
        while reader.offset < last {
            let Some(header) = self.next_frame(reader, limit)? else { continue };
            end = header.position + u64::from(header.payload_bytes);
            if limit.is_some_and(|limit| end >= limit) {
                return Ok(());
            }
        }
        // The frames of a segment that is not the last one reach to where the next one begins.
        if limit.is_some_and(|limit| end < limit) {
            let (from, to) = (reader.offset, reader.bytes.max(reader.offset));
            self.lose(&path, (from, to), "frames are missing at its end");
        }
        Ok(())
    }

    /// Looks at the place of a frame, takes what is sound of it, and moves on. `None`: there is no intact one.
    fn next_frame(&mut self, reader: &mut LogFileReader, limit: Option<u64>) -> Result<Option<FrameHeader>, LogError> {
        let (offset, path) = (reader.offset, reader.path.clone());
        match reader.next_frame_anywhere()? {
            FrameRead::Nothing(why) => {
                self.lose(&path, (offset, offset + BLOCK_BYTES), why);
                Ok(None)
            }
            FrameRead::Frame(header, bytes) => {
                let payload = bytes.payload();
                let wanted = limit.map_or(payload.len() as u64, |limit| limit.saturating_sub(header.position));
                let payload = payload.get(..wanted as usize).unwrap_or(payload);
                let lost = self.stream.push(&header, payload, &mut self.found.changes, self.take)?;
                if let Some(why) = lost {
                    self.lose(&path, (offset, reader.offset), why);
                }
                Ok(Some(header))
            }
        }
    }
}

impl SalvagedStream {
    /// Adds the payload of an intact frame, and takes the units that it completes. Returns why it cannot be used, if it
    /// cannot.
    fn push(
        &mut self,
        header: &FrameHeader,
        payload: &[u8],
        changes: &mut u64,
        take: &mut dyn FnMut(&LoggedChange<'_>) -> Result<(), LogError>,
    ) -> Result<Option<&'static str>, LogError> {
        let end_of_frame = header.position + payload.len() as u64;
        let mut payload = payload;
        match self.end {
            Some(end) if header.position == end || header.position < end && self.partial.is_empty() => {
                let known = ((end - header.position) as usize).min(payload.len());
                payload = payload.get(known..).unwrap_or_default();
            }
            _ if payload.is_empty() => return Ok(None),
            _ if header.begins_unit => self.partial.clear(),
            _ => {
                self.partial.clear();
                self.end = None;
                return Ok(Some("it goes on with a change whose beginning is lost"));
            }
        }
        self.end = Some(self.end.map_or(end_of_frame, |end| end.max(end_of_frame)));
        self.partial.extend_from_slice(payload);
        let mut done = 0;
        let lost = loop {
            match parse_unit(self.partial.get(done..).unwrap_or_default()) {
                UnitParse::Unit(mut unit, bytes) => {
                    *changes += unit.changes();
                    unit.try_for_each(|change| take(&change))?;
                    done += bytes;
                }
                UnitParse::Incomplete => break None,
                UnitParse::Malformed => {
                    (self.end, done) = (None, self.partial.len());
                    break Some("the frame has no changes of this format");
                }
            }
        };
        self.partial.drain(..done);
        Ok(lost)
    }
}
