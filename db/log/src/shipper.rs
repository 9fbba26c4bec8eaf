//! Sends a running log to a replica: the newest checkpoint, the segments from its position on, or from the one on that
//! triggers need ([`ChangeLog::retain_from`]), and from then on each frame once it is on this server's own disk. It
//! reads the log's files, and its last frames from memory, so that writers pay nothing for it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::change::LoggedChange;
use crate::change_log::ChangeLog;
use crate::error::{LogError, LogRefusal};
use crate::file_reader::{FrameRead, LogFileReader};
use crate::frame::FileKind;
use crate::limits::{SHIPPED_BYTES, SHIPPED_CHECKPOINT_BYTES};
use crate::replica::{ReplicaFileState, ReplicaState};
use crate::replica_format::ReplicaBatch;

/// A file that is sent.
struct ShippedFile {
    reader: LogFileReader,
    /// The position of its next frame.
    position: u64,
    is_begun: bool,
    is_published: bool,
    /// Whether all of a checkpoint was sent.
    is_whole: bool,
    /// The position up to which a whole checkpoint may have seen changes.
    seen: u64,
}

impl ShippedFile {
    fn new(reader: LogFileReader) -> ShippedFile {
        let header = reader.header;
        let position = if header.kind == FileKind::Segment { header.first_position } else { 0 };
        ShippedFile { reader, position, is_begun: false, is_published: false, is_whole: false, seen: 0 }
    }

    fn begin(&mut self, batch: &mut ReplicaBatch) {
        if !std::mem::replace(&mut self.is_begun, true) {
            batch.begin(&self.reader.header);
        }
    }

    fn publish(&mut self, batch: &mut ReplicaBatch) {
        if !std::mem::replace(&mut self.is_published, true) {
            batch.publish(self.reader.header.kind, self.reader.header.number);
        }
    }

    /// Adds the next frame; returns whether there was one. `ends_at`: no frame behind that position is added.
    fn frame(&mut self, batch: &mut ReplicaBatch, ends_at: u64) -> Result<bool, LogError> {
        let (offset, position) = (self.reader.offset, self.position);
        let (kind, number) = (self.reader.header.kind, self.reader.header.number);
        match self.reader.next_frame(position)? {
            FrameRead::Frame(frame, bytes) if position + u64::from(frame.payload_bytes) <= ends_at => {
                batch.frame((kind, number), offset, bytes.whole());
                self.position += u64::from(frame.payload_bytes);
                (self.is_whole, self.seen) = (frame.is_last, frame.durable);
                Ok(true)
            }
            FrameRead::Frame(..) => {
                self.reader.offset = offset;
                Ok(false)
            }
            FrameRead::Nothing(_) => Ok(false),
        }
    }

    fn damaged(&self) -> LogError {
        let what = "there is no frame, though the log is on the disk up to there";
        LogError::damaged(&self.reader.path, self.reader.offset, what)
    }
}

/// What is sent to one replica: see the head of this file.
pub struct LogShipper {
    log: Arc<ChangeLog>,
    segment: ShippedFile,
    /// A checkpoint that is being sent.
    checkpoint: Option<ShippedFile>,
    /// The number of the last whole checkpoint that the replica has; 0: it has none.
    known_checkpoint: u64,
    /// Whether the replica has a checkpoint, or needs none, so that it can be read.
    is_readable: bool,
    /// What is to be removed there: all before a checkpoint and a segment.
    trim: Option<(u64, u64)>,
    /// The number of the first segment that the replica has.
    first: u64,
    /// The position up to which the replica has the log.
    held: Option<u64>,
}

fn open(log: &ChangeLog, kind: FileKind, number: u64) -> Result<LogFileReader, LogError> {
    let reader = LogFileReader::open(&*log.shared().disk, kind, number)?;
    Ok(reader.with_recent(&log.shared().recent))
}

/// The segment behind that of a number: its own number, and its first position.
fn segment_behind(log: &ChangeLog, number: u64) -> Option<(u64, u64)> {
    log.shared().first_positions.lock().iter().find(|(other, _)| *other > number).copied()
}

/// The first segment that a replica needs whose checkpoint holds from a position: that of the position, and those which
/// triggers need. `None`: it is not there any more.
fn first_needed(log: &ChangeLog, from: u64) -> Option<u64> {
    let retained = log.shared().retain_from.load(Relaxed);
    let segments = log.shared().first_positions.lock();
    let of = |position| segments.iter().rposition(|(_, first_position)| *first_position <= position);
    let holding = of(from)?;
    // A reader begins with a frame that begins a unit, which may be in the segment before: as a checkpoint leaves them.
    let retained = Some(retained).filter(|retained| *retained < from);
    let first = retained.map_or(holding, |retained| of(retained).unwrap_or(0).saturating_sub(1).min(holding));
    segments.get(first).map(|(number, _)| *number)
}

impl LogShipper {
    /// Begins to send a log to a replica that has what its state says. `None`: what it has cannot be gone on with. The
    /// log's files stay from here on as [`ChangeLog::keep_for_copies`] says.
    ///
    /// # Errors
    /// [`LogError`]: the log's files cannot be read, or were removed meanwhile.
    pub fn begin(log: &Arc<ChangeLog>, state: &ReplicaState) -> Result<Option<LogShipper>, LogError> {
        if state.log_id != 0 && state.log_id != log.shared().log_id {
            return Ok(None);
        }
        let of = |kind| state.files.iter().filter(move |file| file.header.kind == kind);
        let segments: Vec<&ReplicaFileState> = of(FileKind::Segment).collect();
        let Some(last) = segments.last() else {
            let all_new = state.files.is_empty();
            return if all_new { LogShipper::begin_new(log).map(Some) } else { Ok(None) };
        };
        let checkpoint = of(FileKind::Checkpoint).next_back();
        let from = checkpoint.map_or(0, |file| file.header.first_position);
        let has_gap = segments.windows(2).any(|pair| pair[0].header.number + 1 != pair[1].header.number);
        if has_gap || segments.first().is_none_or(|first| first.header.first_position > from) {
            return Ok(None);
        }
        let is_there = log.shared().first_positions.lock().iter().any(|(number, _)| *number == last.header.number);
        if !is_there {
            return Ok(None);
        }
        let mut segment = ShippedFile::new(open(log, FileKind::Segment, last.header.number)?);
        if segment.reader.header == last.header {
            // The same file: it goes on where the replica ends.
            while segment.reader.offset < last.offset {
                let Some(frame) = segment.reader.peek_header()? else { return Ok(None) };
                segment.reader.skip(&frame);
                segment.position += u64::from(frame.payload_bytes);
            }
            if (segment.reader.offset, segment.position) != (last.offset, last.position) {
                return Ok(None);
            }
            (segment.is_begun, segment.is_published) = (true, true);
        }
        let known_checkpoint = checkpoint.map_or(0, |file| file.header.number);
        let (log, first) = (Arc::clone(log), segments.first().map_or(0, |first| first.header.number));
        let (checkpoint, trim, held) = (None, None, None);
        let mut shipper =
            LogShipper { log, segment, checkpoint, known_checkpoint, is_readable: true, trim, first, held };
        // What it says that it has is on its disk.
        shipper.note_held();
        Ok(Some(shipper))
    }

    /// To a replica that has nothing.
    fn begin_new(log: &Arc<ChangeLog>) -> Result<LogShipper, LogError> {
        let number = log.shared().checkpoint.load(Relaxed);
        let (mut checkpoint, mut from) = (None, 0);
        if number != 0 {
            let file = ShippedFile::new(open(log, FileKind::Checkpoint, number)?);
            from = file.reader.header.first_position;
            checkpoint = Some(file);
        }
        let first = first_needed(log, from);
        let first = first.ok_or_else(|| LogError::unusable("log", "its beginning was removed meanwhile"))?;
        let segment = ShippedFile::new(open(log, FileKind::Segment, first)?);
        let is_readable = checkpoint.is_none();
        let (trim, held) = (None, None);
        let log = Arc::clone(log);
        Ok(LogShipper { log, segment, checkpoint, known_checkpoint: 0, is_readable, trim, first, held })
    }

    /// Returns the next pieces, of about a MiB; none: there is nothing to be sent. When the replica has them,
    /// [`LogShipper::acknowledge`] follows. `is_quiet`: nothing was written for a moment, so that the empty frame which
    /// says that all is on the disk is looked for, too.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn next_batch(&mut self, is_quiet: bool) -> Result<ReplicaBatch, LogError> {
        let mut batch = ReplicaBatch::default();
        let durable = self.log.durable();
        while batch.len() < SHIPPED_BYTES {
            self.segment.begin(&mut batch);
            let number = self.segment.reader.header.number;
            match segment_behind(&self.log, number) {
                // A later segment holds from its first position on, also where that is before this one's end.
                Some((next, first_position)) if self.segment.position >= first_position => {
                    self.segment.publish(&mut batch);
                    self.segment = ShippedFile::new(open(&self.log, FileKind::Segment, next)?);
                }
                _ if self.segment.position < durable => {
                    if !self.segment.frame(&mut batch, durable)? {
                        // A frame that goes on behind what was the end a moment ago.
                        if self.log.durable() > durable {
                            break;
                        }
                        return Err(self.segment.damaged());
                    }
                }
                _ => {
                    if is_quiet {
                        let _or_none = self.segment.frame(&mut batch, durable)?;
                    }
                    self.segment.publish(&mut batch);
                    break;
                }
            }
        }
        self.add_checkpoint(&mut batch)?;
        Ok(batch)
    }

    /// Whether the next batch has something for certain: more of the log, of a checkpoint, or a file's name.
    pub fn has_more(&self) -> bool {
        let is_new = self.log.shared().checkpoint.load(Relaxed) > self.known_checkpoint;
        self.log.durable() > self.segment.position
            || is_new
            || !self.segment.is_published
            || segment_behind(&self.log, self.segment.reader.header.number).is_some()
    }

    fn add_checkpoint(&mut self, batch: &mut ReplicaBatch) -> Result<(), LogError> {
        let newest = self.log.shared().checkpoint.load(Relaxed);
        if self.checkpoint.is_none() && newest > self.known_checkpoint {
            self.checkpoint = Some(ShippedFile::new(open(&self.log, FileKind::Checkpoint, newest)?));
        }
        let Some(checkpoint) = &mut self.checkpoint else { return Ok(()) };
        checkpoint.begin(batch);
        let most = batch.len() + SHIPPED_CHECKPOINT_BYTES;
        while batch.len() < most && !checkpoint.is_whole {
            if !checkpoint.frame(batch, u64::MAX)? {
                return Err(checkpoint.damaged());
            }
        }
        // It may show the half of what was written at once, until the log that it has seen is there, too.
        let segment = &self.segment;
        let named = if segment.is_published { segment.position } else { segment.reader.header.first_position };
        if checkpoint.is_whole && named >= checkpoint.seen {
            checkpoint.publish(batch);
        }
        Ok(())
    }

    /// The replica has the last pieces.
    pub fn acknowledge(&mut self) {
        if let Some(sent) = self.checkpoint.take_if(|checkpoint| checkpoint.is_published) {
            let header = sent.reader.header;
            self.known_checkpoint = header.number;
            self.is_readable = true;
            // Where it is not known any more, it is with the next checkpoint.
            if let Some(first) = first_needed(&self.log, header.first_position) {
                // It may have begun with a later one, when less was needed.
                self.first = self.first.max(first);
                self.trim = Some((header.number, self.first));
            }
        }
        self.note_held();
    }

    /// Notes how far the replica has the log, once it has all that was sent.
    fn note_held(&mut self) {
        // What is in a later segment that has no name yet counts for nothing, and nor does what it replaces.
        if self.is_readable && self.segment.is_published {
            let next = segment_behind(&self.log, self.segment.reader.header.number);
            let limit = next.map_or(u64::MAX, |(_, first_position)| first_position);
            self.held = Some(self.segment.position.min(limit));
        }
    }

    /// Returns what the replica can remove now: all before a checkpoint and a segment.
    pub fn take_trim(&mut self) -> Option<(u64, u64)> {
        self.trim.take()
    }

    /// Returns the position up to which the replica has the log, whatever was sent to it since that it has not taken;
    /// `None`: it cannot be read yet.
    pub fn held(&self) -> Option<u64> {
        self.held
    }

    /// Returns the position from which on the log's files are needed here.
    pub fn needs_from(&self) -> u64 {
        self.segment.reader.header.first_position.min(self.segment.position)
    }

    /// Returns the position up to which the log was read to be sent.
    pub fn sent(&self) -> u64 {
        self.segment.position
    }

    /// Returns how much is to be sent still, about: bytes of the log.
    pub fn behind(&self) -> u64 {
        self.log.end().saturating_sub(self.held.unwrap_or(0))
    }
}

impl ChangeLog {
    /// Has checkpoints leave the log from a position on, for replicas; `None`: they need nothing. As
    /// [`ChangeLog::retain_from`], and beside it.
    pub fn keep_for_copies(&self, position: Option<u64>) {
        self.shared().ship_from.store(position.unwrap_or(u64::MAX), Relaxed);
        self.shared().want_recent();
    }

    /// Has positions with [`crate::COPIED_BIT`] wait for the copies on other servers. Else they wait for the disk.
    pub fn wait_for_copies(&self) {
        self.shared().copied.turn_on();
    }

    /// Sets how far the copies have the log, until when what that shows may be shown, and whether copies have been
    /// missing for too long: then it is not known what waits for them.
    pub fn set_copied(&self, position: u64, lease_end: Duration, is_stalled: bool) {
        self.shared().copied.set(position, lease_end, is_stalled);
        self.shared().tell_progress();
    }

    /// Returns the position up to which the copies have the log.
    pub fn copied(&self) -> u64 {
        self.shared().copied.position()
    }

    /// Returns whether changes that wait for copies are to be refused, since copies have been missing for too long.
    #[inline]
    pub fn are_copies_missing(&self) -> bool {
        self.shared().copied.is_on() && self.shared().copied.is_stalled()
    }

    /// Returns a position as what waits for copies has it: with [`crate::COPIED_BIT`], and no lower than what is waited
    /// for since another server has taken this one's place.
    #[inline]
    pub fn copied_position(&self, position: u64) -> u64 {
        position.max(self.shared().copied.floor()) | crate::COPIED_BIT
    }

    /// Another server has taken this one's place: nothing that has waited until now for copies is ever shown. `made`
    /// names a table; it makes a position that what comes from here on can wait for. Only where nothing runs any more
    /// that has seen the records of before.
    ///
    /// # Errors
    /// The log takes nothing now.
    pub fn lose_copied(self: &Arc<Self>, made: &LoggedChange<'_>) -> Result<(), LogRefusal> {
        let permit = self.admit(made.key.len(), 0)?;
        let lost = self.end();
        let floor = self.append(made, false);
        drop(permit);
        self.shared().copied.lose(lost, floor);
        self.shared().tell_progress();
        Ok(())
    }
}
