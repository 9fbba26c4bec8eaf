//! Reads the changes of a running log from a position on, as they reach the disk: for feeds of changes and triggers.
//!
//! A tail reads the log's files, so writers pay nothing for it. It shows what is on the disk and nothing else: a crash
//! takes back no change that a tail has shown. A position is one that a tail has returned before: where a unit ends.
//! Any other one is refused, since bytes that are read from within a value could be taken for changes of any table. So
//! a tail begins with a frame that says that a unit begins with it, and counts units from there.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::change::{LoggedChange, UnitParse, parse_unit};
use crate::change_log::ChangeLog;
use crate::error::LogError;
use crate::file_reader::{FrameRead, LogFileReader};
use crate::frame::FileKind;

/// Why changes cannot be read from a position on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TailError {
    /// The log does not go back so far any more.
    #[error("the log begins at position {oldest}: what was before is in its checkpoint only")]
    TooOld {
        /// The first position from which changes can be read.
        oldest: u64,
    },
    /// No unit ends there.
    #[error("{0} is no position of the log that was handed out")]
    NoPosition(u64),
    /// The files cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// The changes of a log from a position on.
pub struct LogTail {
    log: Arc<ChangeLog>,
    /// The segment that is read.
    reader: LogFileReader,
    /// The position of the first byte that is not shown, where a unit begins.
    start: u64,
    /// What was read: of the first `shown` bytes the changes were shown. They go with the next frame, since a reader
    /// that takes a few changes at a time would move all the others each time.
    bytes: Vec<u8>,
    shown: usize,
}

/// Receives a change and the position behind its unit; returns whether it wants more.
pub type TailVisitor<'v> = dyn FnMut(u64, &LoggedChange<'_>) -> bool + 'v;

impl LogTail {
    /// A tail of the changes behind a position.
    ///
    /// # Errors
    /// [`TailError`].
    pub fn at(log: &Arc<ChangeLog>, position: u64) -> Result<LogTail, TailError> {
        if position > log.durable() {
            return Err(TailError::NoPosition(position));
        }
        let (reader, start) = unit_before(log, position)?;
        let mut tail = LogTail { log: Arc::clone(log), reader, start, bytes: Vec::new(), shown: 0 };
        while tail.start < position {
            let next = tail.read_up_to();
            if next < position {
                tail.next_frame(next)?;
            }
            let before = tail.start;
            tail.show(position, &mut |_, _| true)?;
            if next >= position && tail.start == before {
                break;
            }
        }
        if tail.start == position { Ok(tail) } else { Err(TailError::NoPosition(position)) }
    }

    /// The position behind the last unit that was shown: another tail can begin there.
    pub fn position(&self) -> u64 {
        self.start
    }

    /// Whether everything that is on the disk was shown.
    pub fn is_at_end(&self) -> bool {
        self.start >= self.log.durable()
    }

    /// Shows changes that are on the disk, each with the position behind its unit. It ends when about so many bytes
    /// were read, when there are no more, or behind a unit of which `visit` returned false for a change. Returns the
    /// bytes that were read.
    ///
    /// # Errors
    /// [`TailError::TooOld`] if a checkpoint has removed what comes next; [`TailError::Log`].
    pub fn read(&mut self, bytes: u64, visit: &mut TailVisitor<'_>) -> Result<u64, TailError> {
        let mut read = 0;
        while self.show(u64::MAX, visit)? {
            let next = self.read_up_to();
            if read >= bytes || next >= self.log.durable() {
                break;
            }
            read += self.next_frame(next)?;
        }
        Ok(read)
    }

    /// The position behind what was read.
    fn read_up_to(&self) -> u64 {
        self.start + (self.bytes.len() - self.shown) as u64
    }

    /// Reads the frame at a position that is on the disk. Returns its bytes, at least 1.
    fn next_frame(&mut self, next: u64) -> Result<u64, TailError> {
        let (number, _) = segment_of(&self.log, next)?;
        if number != self.reader.header.number {
            self.reader = open(&self.log, number)?;
        }
        let offset = self.reader.offset;
        let path = self.reader.path.clone();
        let damaged = |what: &str| Err(TailError::Log(LogError::damaged(&path, offset, what)));
        let position = match self.reader.peek_header()? {
            Some(header) => header.position,
            None => return damaged("there is no frame, though the log is on the disk up to there"),
        };
        // A segment may begin before the end of the one before it.
        let known = next.saturating_sub(position) as usize;
        match self.reader.next_frame(position)? {
            FrameRead::Frame(header, bytes) => {
                let payload = bytes.payload();
                if position > next {
                    return damaged("the frame is that of a later position");
                }
                self.bytes.drain(..std::mem::take(&mut self.shown));
                self.bytes.extend_from_slice(payload.get(known..).unwrap_or_default());
                Ok(u64::from(header.payload_bytes) + 1)
            }
            FrameRead::Nothing(what) => damaged(what),
        }
    }

    /// Shows the whole units that were read and begin before a position. Returns whether `visit` wants more.
    fn show(&mut self, before: u64, visit: &mut TailVisitor<'_>) -> Result<bool, TailError> {
        let (mut goes_on, durable) = (true, self.log.durable());
        while goes_on && self.start < before {
            match parse_unit(self.bytes.get(self.shown..).unwrap_or_default()) {
                UnitParse::Unit(unit, bytes) => {
                    let end = self.start + bytes as u64;
                    if end > durable {
                        break;
                    }
                    unit.for_each(|change| goes_on &= visit(end, &change));
                    self.shown += bytes;
                    self.start = end;
                }
                UnitParse::Incomplete => break,
                UnitParse::Malformed => {
                    let what = "the frame has no changes of this format";
                    return Err(LogError::damaged(&self.reader.path, self.reader.offset, what).into());
                }
            }
        }
        Ok(goes_on)
    }
}

/// The segment that has the byte at a position: its number and first position.
fn segment_of(log: &ChangeLog, position: u64) -> Result<(u64, u64), TailError> {
    log.segment_at(position).ok_or_else(|| TailError::TooOld { oldest: log.oldest_position() })
}

fn open(log: &ChangeLog, number: u64) -> Result<LogFileReader, TailError> {
    match LogFileReader::open(&*log.shared().disk, FileKind::Segment, number) {
        Ok(reader) => Ok(reader.with_recent(&log.shared().recent)),
        Err(error) => {
            // A checkpoint may have removed it just now.
            let segments = log.shared().first_positions.lock();
            match segments.first() {
                Some((first, oldest)) if *first > number => Err(TailError::TooOld { oldest: *oldest }),
                _ => Err(error.into()),
            }
        }
    }
}

/// A reader at the last frame that begins a unit at a position or before, and that frame's position.
fn unit_before(log: &Arc<ChangeLog>, position: u64) -> Result<(LogFileReader, u64), TailError> {
    let (mut number, mut first) = segment_of(log, position)?;
    loop {
        let mut reader = open(log, number)?;
        let mut found = None;
        // At a log's very first position a unit begins, and at the end of what is on the disk there is no frame yet.
        while let Some(header) = reader.peek_header()? {
            if header.position > position || header.position >= log.durable() && header.payload_bytes > 0 {
                break;
            }
            if header.begins_unit && header.payload_bytes > 0 {
                found = Some((reader.offset, header.position));
            }
            reader.skip(&header);
        }
        if let Some((offset, start)) = found {
            reader.offset = offset;
            return Ok((reader, start));
        }
        if position == log.durable() && first == position {
            return Ok((reader, position));
        }
        let segments = log.shared().first_positions.lock();
        let at = segments.iter().position(|(one, _)| *one == number);
        let before = at.and_then(|at| at.checked_sub(1)).and_then(|at| segments.get(at));
        let oldest = segments.get(at.map_or(0, |at| at + 1)).map_or(first, |(_, next)| *next);
        (number, first) = before.copied().ok_or(TailError::TooOld { oldest })?;
    }
}

impl ChangeLog {
    /// Has checkpoints leave the log from a position on, for tails; `None`: what they do not need themselves goes.
    /// Whatever is asked for, [`crate::limits::RETAINED_BYTES`] stay at most, and [`crate::limits::FEED_BYTES`] at
    /// least.
    pub fn retain_from(&self, position: Option<u64>) {
        self.shared().retain_from.store(position.unwrap_or(u64::MAX), Relaxed);
        self.shared().want_recent();
    }

    /// The last segment that begins at a position or before: its number and first position. `None`: it was removed.
    pub(crate) fn segment_at(&self, position: u64) -> Option<(u64, u64)> {
        let segments = self.shared().first_positions.lock();
        segments.iter().rev().find(|(_, first_position)| *first_position <= position).copied()
    }

    /// The oldest position of which the files know, from which on changes may be read.
    pub fn oldest_position(&self) -> u64 {
        self.shared().first_positions.lock().first().map_or(0, |(_, first_position)| *first_position)
    }
}
