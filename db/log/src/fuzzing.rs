//! The check of the fuzz target for the log's files (`db/fuzz`), as a plain function over bytes; a property test of the
//! normal run has it, too. It panics if the property does not hold.

use std::sync::Arc;

use crate::disk::LogDisk;
use crate::disk::simulated::SimulatedDisk;
use crate::frame::{FORMAT, FileHeader, FileKind, FrameHeader, FramePlace, OLDEST_FORMAT};
use crate::recovery::{LogEnd, read_log};
use crate::segment_writer::{SegmentStart, SegmentWriter};
use crate::{ChangeKind, LogError, LogOptions, LoggedChange, UnitBuilder, salvage_log};

/// Files and frames of an input, at most: more find nothing else.
const FILES: u8 = 4;
const FRAMES: u8 = 6;
/// Bytes of a segment that goes on with what was read.
const SEGMENT: u64 = 40 << 10;

/// Reads decisions from fuzz input; zeros when it is used up.
struct FuzzInput<'i>(&'i [u8]);

impl<'i> FuzzInput<'i> {
    fn bytes(&mut self, len: usize) -> &'i [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    fn is(&mut self, one_in: u8) -> bool {
        let byte = self.byte();
        byte != 0 && byte.is_multiple_of(one_in)
    }
}

/// A change of few keys and tables.
fn push_change(input: &mut FuzzInput<'_>, unit: &mut UnitBuilder) {
    const KINDS: [ChangeKind; 6] = [
        ChangeKind::Put,
        ChangeKind::Delete,
        ChangeKind::Clear,
        ChangeKind::MakeTable,
        ChangeKind::DropTable,
        ChangeKind::Arrive,
    ];
    let kind = KINDS[usize::from(input.byte()) % KINDS.len()];
    let (key, version) = ([input.byte() % 4], u64::from(input.byte()));
    let length = usize::from(input.byte());
    let value = input.bytes(length);
    let (table, flags, expires_at_ms) = (1, 0, 0);
    unit.push(&LoggedChange { kind, table, version, expires_at_ms, flags, key: &key, value });
}

/// The payload of a frame: units, or anything.
fn payload(input: &mut FuzzInput<'_>) -> Vec<u8> {
    let mut payload = Vec::new();
    for _ in 0..input.byte() % 3 {
        let mut unit = UnitBuilder::default();
        (0..=input.byte() % 3).for_each(|_| push_change(input, &mut unit));
        payload.extend_from_slice(unit.encoded());
    }
    if input.is(7) {
        let length = usize::from(input.byte());
        payload.extend_from_slice(input.bytes(length));
    }
    if input.is(5) {
        payload.truncate(payload.len().saturating_sub(usize::from(input.byte())));
    }
    payload
}

/// A file whose checksums are right, whatever it says.
fn file(input: &mut FuzzInput<'_>, (kind, number): (FileKind, u64), position: &mut u64) -> Vec<u8> {
    let format = if input.is(4) { OLDEST_FORMAT } else { FORMAT };
    let log_id = if input.is(16) { 2 } else { 1 };
    if input.is(6) {
        *position = position.saturating_sub(u64::from(input.byte()));
    }
    let header = FileHeader { format, kind, log_id, number, first_position: *position, made_ms: 1 };
    let mut bytes = header.encode();
    let (mut at, mut durable) = if kind == FileKind::Segment { (*position, *position) } else { (0, 0) };
    let frames = input.byte() % FRAMES;
    for frame in 0..frames {
        let payload = payload(input);
        if input.is(8) {
            at = u64::from(input.byte());
        }
        let place = FramePlace { kind, log_id, number, offset: bytes.len() as u64 };
        let is_last = kind == FileKind::Checkpoint && (frame + 1 == frames || input.is(9));
        let promised = if input.is(8) { u64::from(input.byte()) } else { durable };
        let begins_unit = !payload.is_empty();
        let header = FrameHeader {
            position: at,
            durable: promised,
            payload_bytes: payload.len() as u32,
            is_last,
            begins_unit,
            age: u32::from(input.byte()),
        };
        header.encode_as(format, &place, &payload, &mut bytes);
        at += payload.len() as u64;
        durable = at;
    }
    if kind == FileKind::Segment {
        *position = at;
    }
    if input.is(3) {
        let place = usize::from(input.byte()) << 8 | usize::from(input.byte());
        let length = usize::from(input.byte() % 16);
        bytes.iter_mut().skip(place).zip(input.bytes(length)).for_each(|(byte, other)| *byte = *other);
    }
    bytes
}

fn changes_of(disk: &Arc<dyn LogDisk>) -> Result<(Vec<String>, LogEnd), LogError> {
    let mut changes = Vec::new();
    let end = read_log(disk, &mut |change, is_of_checkpoint| {
        changes.push(format!("{is_of_checkpoint} {change:?}"));
        Ok(())
    })?;
    Ok((changes, end))
}

/// Files of a log, each as the input says, are read, or refused by name; twice they are read as the same. What was read
/// is there once a log goes on behind it. What is sound of them can be salvaged.
pub fn log_files(input: &[u8]) {
    let (mut input, disk, mut position) = (FuzzInput(input), SimulatedDisk::default(), 0);
    let disk: Arc<dyn LogDisk> = Arc::new(disk);
    for number in 1..=1 + u64::from(input.byte() % FILES) {
        let kind = if input.is(4) { FileKind::Checkpoint } else { FileKind::Segment };
        let content = if input.is(12) {
            let length = usize::from(input.byte()) << 4;
            input.bytes(length).to_vec()
        } else {
            file(&mut input, (kind, number), &mut position)
        };
        let written = disk.create(&kind.file_name(number)).and_then(|file| file.write_at(0, &content));
        assert_eq!(written.ok(), Some(content.len()), "a disk in memory takes all");
    }
    let read = changes_of(&disk);
    let seen = |(changes, end): &(Vec<String>, LogEnd)| (changes.clone(), end.position, end.tail.clone());
    let again = changes_of(&disk);
    assert_eq!(read.as_ref().map(seen), again.as_ref().map(seen), "reading changes nothing");
    let into: Arc<dyn LogDisk> = Arc::new(SimulatedDisk::default());
    let options = LogOptions { segment_bytes: SEGMENT, ..LogOptions::default() };
    let _salvaged = salvage_log(&disk, &into, options, &mut |_| Ok(()));
    let Ok((changes, end)) = read else { return };
    let start = SegmentStart {
        log_id: end.log_id.max(1),
        number: end.next_segment(),
        position: end.position,
        segment_bytes: SEGMENT,
    };
    SegmentWriter::start(Arc::clone(&disk), start, &end.tail).map(drop).expect("a disk in memory takes all");
    let found = changes_of(&disk).map(|(changes, _)| changes);
    assert_eq!(found, Ok(changes), "what was read is there once the log goes on");
}
