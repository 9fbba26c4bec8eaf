//! The spill file of one table. Records are added to a chunk in memory, which a writer's thread writes when it is full;
//! until then they are read from there. No caller but the writer and the readers' threads waits for the disk.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use parking_lot::Mutex;
use sandstorm_log::LogRefusal;

use super::device::{AlignedBytes, SpillDevice};
use super::format::{
    BLOCK_BYTES, LocatedRecord, RUN_HEADER_BYTES, RunDamage, SpillAddress, SpillRecord, begin_header, length_class,
    records, seal_header, used_bytes, verify,
};
use super::segments::{AppendCause, SEGMENT_BLOCKS, SegmentTable};
use crate::limits::{SPILL_CHUNK_BLOCKS, SPILL_WAITING_CHUNKS};

/// Why a record cannot move to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpillRefusal {
    /// The file has as many bytes as it may have.
    #[error("the table's spill file has reached its limit: delete records, or raise the limit")]
    Full,
    /// The disk has no room.
    #[error("the disk of the spill files is full: the operator has to make room; the server goes on by itself then")]
    NoSpace,
    /// The disk fails.
    #[error("the disk of the spill files cannot be written: the server's messages say why")]
    Failed,
    /// The disk is slower than the writes.
    #[error("the disk of the spill files is busy: write again in a moment")]
    Slow,
    /// The system gives no memory for the blocks that are to be written.
    #[error("the server's machine has no memory left for blocks to be written")]
    NoMemory,
    /// The table has no spill file.
    #[error("the table has no spill file: the server was started without a state directory")]
    NoFile,
}

impl SpillRefusal {
    /// All of them.
    pub(crate) const ALL: [SpillRefusal; 6] = [
        SpillRefusal::Full,
        SpillRefusal::NoSpace,
        SpillRefusal::Failed,
        SpillRefusal::Slow,
        SpillRefusal::NoMemory,
        SpillRefusal::NoFile,
    ];
}

/// Why a record could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpillReadError {
    /// The system's call failed.
    #[error("the disk does not read the record's block")]
    Device,
    /// The block is damaged.
    #[error("the record's block on the disk is damaged: its checksum is wrong")]
    Checksum,
    /// The block is another one.
    #[error("the disk has another block where the record's was written")]
    Misdirected,
    /// The block is right, and the record is not there.
    #[error("the record is not in its block on the disk")]
    Missing,
    /// There is no memory for the block.
    #[error("the server's machine has no memory left for the record's block")]
    NoMemory,
    /// The table's backing does not answer in time, or refuses.
    #[error("the table's backing does not answer, or refuses; `sandstorm table show` says what it said")]
    BackingDown,
    /// The table's backing has something else than what was written there.
    #[error("what the table's backing has of the record is damaged: its length, key or checksum is wrong")]
    BackingDamaged,
    /// The record does not fit into the table.
    #[error("the table has no room for what its backing has of the record")]
    BackingTooLarge,
    /// An expired record is in the place of the one that the backing has, and the log, which is to know that it leaves,
    /// does not take that.
    #[error("an expired record cannot make room for what the table's backing has: {0}; ask again later")]
    NotLogged(LogRefusal),
}

/// A record that was read.
pub(crate) struct SpilledRecord {
    bytes: AlignedBytes,
    located: LocatedRecord,
}

impl SpilledRecord {
    pub(crate) fn record(&self) -> SpillRecord<'_> {
        let LocatedRecord { hash, version, expires_at_ms, flags, key, value } = &self.located;
        let part = |range: &std::ops::Range<usize>| self.bytes.get().get(range.clone()).unwrap_or_default();
        let (key, value) = (part(key), part(value));
        SpillRecord { hash: *hash, version: *version, expires_at_ms: *expires_at_ms, flags: *flags, key, value }
    }
}

/// Consecutive blocks that are written together.
struct WriteChunk {
    first_block: u32,
    bytes: AlignedBytes,
    /// Blocks of its runs.
    blocks: u32,
    /// The run to which records are added: its first block in the chunk.
    run: Option<u32>,
    run_records: u32,
}

impl WriteChunk {
    fn new(first_block: u32, blocks: u32) -> Option<WriteChunk> {
        let bytes = AlignedBytes::zeroed(blocks as usize * BLOCK_BYTES)?;
        Some(WriteChunk { first_block, bytes, blocks: 0, run: None, run_records: 0 })
    }

    fn capacity(&self) -> u32 {
        (self.bytes.get().len() / BLOCK_BYTES) as u32
    }

    fn run_at(&self, block: u32) -> Option<&[u8]> {
        let at = block.checked_sub(self.first_block).filter(|at| *at < self.blocks)?;
        self.bytes.get().get(at as usize * BLOCK_BYTES..self.blocks as usize * BLOCK_BYTES)
    }

    fn end_run(&mut self) {
        if let Some(run) = self.run.take() {
            seal_header(&mut self.bytes.get_mut()[run as usize * BLOCK_BYTES..]);
            self.run_records = 0;
        }
    }

    /// Begins a run of so many blocks behind the last one, which has room.
    fn begin_run(&mut self, file: u64, blocks: u32) {
        let at = self.blocks;
        begin_header(
            &mut self.bytes.get_mut()[at as usize * BLOCK_BYTES..],
            file,
            self.first_block + at,
            RUN_HEADER_BYTES,
            0,
        );
        self.run = Some(at);
        self.blocks += blocks;
    }

    /// Adds a record to the run, if there is one with room; returns the run's first block in the file.
    fn add(&mut self, file: u64, record: &SpillRecord<'_>) -> Option<u32> {
        let run = self.run?;
        let end = self.blocks as usize * BLOCK_BYTES;
        let block = self.first_block + run;
        let bytes = self.bytes.get_mut().get_mut(run as usize * BLOCK_BYTES..end)?;
        let used = used_bytes(bytes);
        let after = used + record.encoded_len();
        record.encode(bytes.get_mut(used..after)?);
        self.run_records += 1;
        begin_header(bytes, file, block, after, self.run_records);
        Some(block)
    }
}

struct SpillState {
    segments: SegmentTable,
    filling: Option<WriteChunk>,
    /// Full chunks, in the order in which they are written.
    waiting: VecDeque<Arc<WriteChunk>>,
    /// Why the last write failed; none once one succeeded.
    failure: Option<SpillRefusal>,
}

impl SpillState {
    fn has_unwritten(&self, segment: u32) -> bool {
        let waiting = self.waiting.iter().map(|chunk| chunk.first_block);
        let filling = self.filling.iter().map(|chunk| chunk.first_block);
        waiting.chain(filling).any(|block| SegmentTable::segment_of(block) == segment)
    }
}

/// The result of [`SpillFile::write_waiting`].
#[derive(Debug)]
pub(crate) enum WriteOutcome {
    /// There was nothing to write.
    Idle,
    /// A chunk of so many bytes was written.
    Written(usize),
    /// The write failed; the chunk stays in memory. The error, if it is the first since a success.
    Failed(Option<io::Error>),
}

/// What a spill file holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpillUse {
    /// Records that are referred to.
    pub(crate) records: u64,
    /// Bytes of the segments in use.
    pub(crate) bytes: u64,
}

/// The spill file of one table.
pub(crate) struct SpillFile {
    device: Box<dyn SpillDevice>,
    /// Tells its blocks from those of other files.
    number: u64,
    state: Mutex<SpillState>,
    /// Held while a chunk is written: they are written one after the other.
    writing: Mutex<()>,
}

impl std::fmt::Debug for SpillFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpillFile").field("number", &self.number).finish_non_exhaustive()
    }
}

impl SpillFile {
    /// Makes a file on an empty device. It takes `limit_bytes` of the disk, rounded down to segments of 16 MiB, and one
    /// at least.
    pub(crate) fn new(device: Box<dyn SpillDevice>, number: u64, limit_bytes: u64) -> SpillFile {
        let state = SpillState {
            segments: SegmentTable::new(segments_of(limit_bytes)),
            filling: None,
            waiting: VecDeque::new(),
            failure: None,
        };
        SpillFile { device, number, state: Mutex::new(state), writing: Mutex::new(()) }
    }

    /// Sets the bytes of the disk that it takes at most from now on, as in [`SpillFile::new`].
    pub(crate) fn set_limit(&self, limit_bytes: u64) {
        self.state.lock().segments.set_limit(segments_of(limit_bytes));
    }

    /// Adds a record. Returns its address, and whether a chunk became full that has to be written.
    ///
    /// # Errors
    /// [`SpillRefusal`]; nothing was added then.
    pub(crate) fn append(
        &self,
        record: &SpillRecord<'_>,
        cause: AppendCause,
    ) -> Result<(SpillAddress, bool), SpillRefusal> {
        let state = &mut *self.state.lock();
        let class = length_class(RUN_HEADER_BYTES + record.encoded_len()).ok_or(SpillRefusal::Full)?;
        let is_small = class == 0;
        if is_small && let Some(block) = state.filling.as_mut().and_then(|chunk| chunk.add(self.number, record)) {
            state.segments.add_record(block);
            return Ok((SpillAddress { block, length_class: class }, false));
        }
        if let Some(chunk) = &mut state.filling {
            chunk.end_run();
        }
        let is_full = self.make_room(state, SpillAddress { block: 0, length_class: class }.blocks(), cause)?;
        let chunk = state.filling.as_mut().ok_or(SpillRefusal::NoMemory)?;
        chunk.begin_run(self.number, SpillAddress { block: 0, length_class: class }.blocks());
        let block = chunk.add(self.number, record).ok_or(SpillRefusal::Full)?;
        if !is_small {
            chunk.end_run();
        }
        state.segments.add_record(block);
        Ok((SpillAddress { block, length_class: class }, is_full))
    }

    /// Makes room for a run in the chunk that is filled; returns whether another one became full by that.
    fn make_room(&self, state: &mut SpillState, blocks: u32, cause: AppendCause) -> Result<bool, SpillRefusal> {
        if let Some(chunk) = &state.filling
            && chunk.blocks + blocks <= chunk.capacity()
        {
            // Blocks are taken run by run: the next ones of the segment are the chunk's next ones.
            let first = state.segments.take_blocks(blocks, cause).ok_or(SpillRefusal::Full)?;
            if first == chunk.first_block + chunk.blocks {
                return Ok(false);
            }
            return self.next_chunk(state, first, blocks);
        }
        if state.waiting.len() >= SPILL_WAITING_CHUNKS {
            return Err(state.failure.unwrap_or(SpillRefusal::Slow));
        }
        let first = state.segments.take_blocks(blocks, cause).ok_or(SpillRefusal::Full)?;
        self.next_chunk(state, first, blocks)
    }

    /// Replaces the chunk that is filled by one from a block on, of which `blocks` are taken.
    fn next_chunk(&self, state: &mut SpillState, first: u32, blocks: u32) -> Result<bool, SpillRefusal> {
        let rest = SEGMENT_BLOCKS - first % SEGMENT_BLOCKS;
        // Without memory these blocks of the segment stay unused.
        let next = WriteChunk::new(first, rest.min(SPILL_CHUNK_BLOCKS).max(blocks)).ok_or(SpillRefusal::NoMemory)?;
        let full = state.filling.replace(next);
        let is_full = full.is_some();
        state.waiting.extend(full.map(Arc::new));
        Ok(is_full)
    }

    /// Writes the first chunk that waits.
    pub(crate) fn write_waiting(&self) -> WriteOutcome {
        let _writing = self.writing.lock();
        let Some(chunk) = self.state.lock().waiting.front().map(Arc::clone) else { return WriteOutcome::Idle };
        let bytes = &chunk.bytes.get()[..chunk.blocks as usize * BLOCK_BYTES];
        let written = self.device.write_at(u64::from(chunk.first_block) * BLOCK_BYTES as u64, bytes);
        let state = &mut *self.state.lock();
        if let Err(error) = written {
            let is_first = state.failure.is_none();
            state.failure = Some(refusal_of(&error));
            return WriteOutcome::Failed(is_first.then_some(error));
        }
        state.failure = None;
        // The table may have been emptied meanwhile.
        if state.waiting.front().is_some_and(|front| Arc::ptr_eq(front, &chunk)) {
            state.waiting.pop_front();
        }
        self.reuse(state, SegmentTable::segment_of(chunk.first_block));
        WriteOutcome::Written(bytes.len())
    }

    /// Frees a segment if nothing of it is left.
    fn reuse(&self, state: &mut SpillState, segment: u32) {
        if !state.has_unwritten(segment)
            && let Some(blocks) = state.segments.free_if_empty(segment)
        {
            let bytes = |blocks: u32| u64::from(blocks) * BLOCK_BYTES as u64;
            self.device.discard(bytes(segment * SEGMENT_BLOCKS), bytes(blocks));
        }
    }

    /// Notes that a record is not referred to any more.
    pub(crate) fn release(&self, address: SpillAddress) {
        let state = &mut *self.state.lock();
        state.segments.drop_record(address.block);
        self.reuse(state, SegmentTable::segment_of(address.block));
    }

    /// Notes that no record is referred to any more. Records that are being read are not found any more.
    pub(crate) fn clear(&self) {
        let state = &mut *self.state.lock();
        state.waiting.clear();
        state.filling = None;
        state.segments.clear();
    }

    /// Reads a record, by one read of the device, or none if it still waits for the disk.
    ///
    /// # Errors
    /// [`SpillReadError`]; `Missing` also if the record was given back meanwhile.
    pub(crate) fn read(&self, address: SpillAddress, hash: u64, version: u64) -> Result<SpilledRecord, SpillReadError> {
        let mut bytes =
            AlignedBytes::zeroed(address.blocks() as usize * BLOCK_BYTES).ok_or(SpillReadError::NoMemory)?;
        let is_in_memory = self.copy_unwritten(address.block, bytes.get_mut());
        if !is_in_memory {
            let offset = u64::from(address.block) * BLOCK_BYTES as u64;
            self.device.read_at(offset, bytes.get_mut()).map_err(|_| SpillReadError::Device)?;
            verify(bytes.get(), self.number, address.block).map_err(|damage| match damage {
                RunDamage::Checksum => SpillReadError::Checksum,
                RunDamage::Misdirected => SpillReadError::Misdirected,
            })?;
        }
        let located = records(bytes.get()).find(|record| record.hash == hash && record.version == version);
        located.map(|located| SpilledRecord { bytes, located }).ok_or(SpillReadError::Missing)
    }

    /// The number that tells its blocks from those of other files.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Reads blocks of the disk, whatever they have: those that wait for it are not as they will be.
    pub(super) fn read_blocks(&self, first: u32, into: &mut [u8]) -> io::Result<()> {
        self.device.read_at(u64::from(first) * BLOCK_BYTES as u64, into)
    }

    /// Copies the run at a block if it still waits for the disk.
    fn copy_unwritten(&self, block: u32, into: &mut [u8]) -> bool {
        let state = self.state.lock();
        let chunks = state.filling.iter().chain(state.waiting.iter().map(|chunk| &**chunk));
        let Some(run) = chunks.filter_map(|chunk| chunk.run_at(block)).next() else { return false };
        let len = into.len().min(run.len());
        into[..len].copy_from_slice(&run[..len]);
        true
    }

    /// Returns the segment that should be copied next, and its used blocks.
    pub(crate) fn sparse_segment(&self) -> Option<(u32, u32)> {
        let state = self.state.lock();
        state.segments.emptiest(|segment| !state.has_unwritten(segment))
    }

    /// Shows the records of a written segment, each with its address, until `f` returns false. A segment with a damaged
    /// block is not chosen again; its sound blocks are shown.
    pub(crate) fn visit_segment(
        &self,
        (segment, blocks): (u32, u32),
        f: &mut dyn FnMut(SpillAddress, &SpillRecord<'_>) -> bool,
    ) -> Result<(), SpillReadError> {
        let (mut at, mut damage) = (0, Ok(()));
        while at < blocks {
            let block = segment * SEGMENT_BLOCKS + at;
            let read = self.read_run(block, blocks - at);
            if !self.state.lock().segments.is_closed(segment) {
                // Nothing of it is left; it may be in use again.
                return Ok(());
            }
            match read {
                Ok((class, bytes)) => {
                    let address = SpillAddress { block, length_class: class };
                    for LocatedRecord { hash, version, expires_at_ms, flags, key, value } in records(bytes.get()) {
                        let (key, value) = (&bytes.get()[key], &bytes.get()[value]);
                        if !f(address, &SpillRecord { hash, version, expires_at_ms, flags, key, value }) {
                            return damage;
                        }
                    }
                    at += address.blocks();
                }
                Err(error) => {
                    damage = Err(error);
                    at += 1;
                }
            }
        }
        if damage.is_err() {
            self.state.lock().segments.mark_damaged(segment);
        }
        damage
    }

    /// Reads the run at a block; returns its length's class as well.
    fn read_run(&self, block: u32, most: u32) -> Result<(u8, AlignedBytes), SpillReadError> {
        let offset = u64::from(block) * BLOCK_BYTES as u64;
        let read = |blocks: u32| {
            let mut bytes = AlignedBytes::zeroed(blocks as usize * BLOCK_BYTES).ok_or(SpillReadError::NoMemory)?;
            self.device.read_at(offset, bytes.get_mut()).map_err(|_| SpillReadError::Device)?;
            Ok::<_, SpillReadError>(bytes)
        };
        let mut bytes = read(1)?;
        let used = super::format::claimed_bytes(bytes.get());
        let class = length_class(used).ok_or(SpillReadError::Checksum)?;
        let blocks = SpillAddress { block, length_class: class }.blocks();
        if blocks > most {
            return Err(SpillReadError::Checksum);
        }
        if blocks > 1 {
            bytes = read(blocks)?;
        }
        verify(bytes.get(), self.number, block).map_err(|_| SpillReadError::Checksum)?;
        Ok((class, bytes))
    }

    /// Returns what the file holds.
    pub(crate) fn usage(&self) -> SpillUse {
        let (records, blocks) = self.state.lock().segments.totals();
        SpillUse { records, bytes: blocks * BLOCK_BYTES as u64 }
    }

    /// Returns why writes fail, if they do.
    pub(crate) fn failure(&self) -> Option<SpillRefusal> {
        self.state.lock().failure
    }
}

/// The segments of a file that takes so many bytes.
fn segments_of(limit_bytes: u64) -> usize {
    let most = u64::from(u32::MAX / SEGMENT_BLOCKS);
    (limit_bytes / (u64::from(SEGMENT_BLOCKS) * BLOCK_BYTES as u64)).clamp(1, most) as usize
}

fn refusal_of(error: &io::Error) -> SpillRefusal {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => SpillRefusal::NoSpace,
        _ => SpillRefusal::Failed,
    }
}
