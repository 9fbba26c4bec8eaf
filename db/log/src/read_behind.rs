//! Reads the changes of a log that is not written any more from a position on, also those that a checkpoint has made
//! superfluous and that are still there: of a sealed copy, for the calls of its owner's triggers.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::change::{LoggedChange, UnitParse, parse_unit};
use crate::disk::LogDisk;
use crate::error::LogError;
use crate::file_reader::{FrameRead, LogFileReader};
use crate::recovery::{LogFileNumbers, SegmentHead, with_limits};

/// Receives a change and the position behind its unit.
pub type BehindVisitor<'v> = dyn FnMut(u64, &LoggedChange<'_>) -> Result<(), LogError> + 'v;

/// A segment with the position from which on a later one holds.
type LimitedHead = (SegmentHead, Option<u64>);

/// Where a unit begins: the place of its segment among the heads, the offset of its frame, and its position.
type UnitPlace = (usize, u64, u64);

/// Shows the changes behind a position where a unit ends, in their order. Returns the position from which on all were
/// shown: a later one than that if what was between is not there any more.
///
/// # Errors
/// [`LogError`]: damage, among others; or what `visit` returns.
pub fn read_behind(disk: &Arc<dyn LogDisk>, position: u64, visit: &mut BehindVisitor<'_>) -> Result<u64, LogError> {
    let heads = with_limits(heads_back_to(&**disk, position)?);
    let Some(first) = heads.first().map(|(head, _)| head.header.first_position) else { return Ok(position) };
    let Some((at, offset, start)) = unit_before(&**disk, &heads, position)? else { return Ok(position.max(first)) };
    let mut units = ShownUnits { start, bytes: Vec::new(), behind: position };
    for (place, (head, limit)) in heads.iter().enumerate().skip(at) {
        let mut reader = head.open(&**disk)?;
        let mut next = head.header.first_position;
        if limit.is_some_and(|limit| limit <= next) {
            continue;
        }
        if place == at {
            (reader.offset, next) = (offset, start);
        } else if next != units.end() {
            let what = "its first position is not where the segment before ends";
            return Err(LogError::damaged(&reader.path, 0, what));
        }
        while limit.is_none_or(|limit| next < limit) {
            let (offset, path) = (reader.offset, reader.path.clone());
            let FrameRead::Frame(frame, bytes) = reader.next_frame(next)? else {
                if limit.is_none() {
                    break;
                }
                return Err(LogError::damaged(
                    &path,
                    offset,
                    "there is no frame, though the next segment begins later",
                ));
            };
            let payload = bytes.payload();
            let wanted = limit.map_or(payload.len(), |limit| ((limit - next) as usize).min(payload.len()));
            next += u64::from(frame.payload_bytes);
            if !units.push(payload.get(..wanted).unwrap_or(payload), visit)? {
                return Err(LogError::damaged(&path, offset, "the frame has no changes of this format"));
            }
        }
    }
    Ok(position.max(start))
}

/// The units that were read.
struct ShownUnits {
    /// The position of the first byte that is not shown.
    start: u64,
    bytes: Vec<u8>,
    /// Those that end behind this position are shown.
    behind: u64,
}

impl ShownUnits {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Adds a piece, and shows the units that it completes. Returns whether it has any of this format.
    fn push(&mut self, piece: &[u8], visit: &mut BehindVisitor<'_>) -> Result<bool, LogError> {
        self.bytes.extend_from_slice(piece);
        let (mut shown, mut is_sound) = (0, true);
        loop {
            match parse_unit(self.bytes.get(shown..).unwrap_or_default()) {
                UnitParse::Unit(mut unit, bytes) => {
                    self.start += bytes as u64;
                    shown += bytes;
                    if self.start > self.behind {
                        let end = self.start;
                        unit.try_for_each(|change| visit(end, &change))?;
                    }
                }
                UnitParse::Incomplete => break,
                UnitParse::Malformed => {
                    is_sound = false;
                    break;
                }
            }
        }
        self.bytes.drain(..shown);
        Ok(is_sound)
    }
}

/// The segments from the last one back to that before the one of a position, without a gap. What cannot be read before
/// them counts as not there.
fn heads_back_to(disk: &dyn LogDisk, position: u64) -> Result<Vec<SegmentHead>, LogError> {
    let mut heads: VecDeque<SegmentHead> = VecDeque::new();
    for number in LogFileNumbers::list(disk)?.segments.iter().rev() {
        let Some(next) = heads.front().map(|next| next.header) else {
            heads.push_front(SegmentHead::read(disk, *number)?);
            continue;
        };
        let Ok(head) = SegmentHead::read(disk, *number) else { break };
        if number + 1 != next.number || head.header.log_id != next.log_id {
            break;
        }
        heads.push_front(head);
        // A unit with bytes behind the position may begin in the segment before.
        if next.first_position <= position {
            break;
        }
    }
    Ok(heads.into())
}

/// The last frame that begins a unit at a position or before; where there is none, the first one behind it.
fn unit_before(disk: &dyn LogDisk, heads: &[LimitedHead], position: u64) -> Result<Option<UnitPlace>, LogError> {
    let mut found = None;
    for (at, (head, limit)) in heads.iter().enumerate() {
        let mut reader = head.open(disk)?;
        while let Some((offset, begin)) = next_begin(&mut reader, *limit)? {
            if begin > position && found.is_some() {
                return Ok(found);
            }
            found = Some((at, offset, begin));
        }
    }
    Ok(found)
}

/// Goes on to the next frame that begins a unit, before a limit; returns its offset and position.
fn next_begin(reader: &mut LogFileReader, limit: Option<u64>) -> Result<Option<(u64, u64)>, LogError> {
    while let Some(frame) = reader.peek_header()? {
        if limit.is_some_and(|limit| frame.position >= limit) {
            return Ok(None);
        }
        let offset = reader.offset;
        reader.skip(&frame);
        if frame.begins_unit && frame.payload_bytes > 0 {
            return Ok(Some((offset, frame.position)));
        }
    }
    Ok(None)
}
