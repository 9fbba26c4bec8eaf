//! The room of a spill file: segments, each with the number of its records that tables still refer to. A segment of
//! which nothing is left is used again; one of which less than half is left is copied.

use super::format::MOST_RUN_BLOCKS;

/// Why a record is added to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendCause {
    /// It leaves memory.
    Leaves,
    /// Its segment is given up. The last free segment is kept for this.
    Copied,
}

/// Blocks of a segment: 16 MiB. A largest record takes half of one.
pub(super) const SEGMENT_BLOCKS: u32 = 4096;
const _: () = assert!(SEGMENT_BLOCKS > MOST_RUN_BLOCKS);
/// Segments of the smallest file that keeps one free for copies.
const LEAST_WITH_RESERVE: usize = 3;

/// A segment's records.
#[derive(Clone, Copy, Debug, Default)]
struct SegmentUse {
    /// Records that were written since it was last free.
    written: u32,
    /// Records that are still referred to.
    live: u32,
    /// Blocks in use.
    blocks: u32,
    state: SegmentState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SegmentState {
    #[default]
    Free,
    /// Records are added.
    Open,
    /// Full; blocks of it may still wait for the disk.
    Closed,
    /// Cannot be copied: a block of it is damaged.
    Damaged,
}

/// The segments of a file.
#[derive(Debug)]
pub(super) struct SegmentTable {
    segments: Vec<SegmentUse>,
    /// Segments that the file may have.
    limit: usize,
    open: Option<u32>,
}

impl SegmentTable {
    pub(super) fn new(limit: usize) -> SegmentTable {
        SegmentTable { segments: Vec::new(), limit, open: None }
    }

    /// Sets the segments that the file may have from now on. A file with more takes no further ones.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Takes so many consecutive blocks; returns the first, counted from the start of the file. `None`: the file has
    /// reached its limit.
    pub(super) fn take_blocks(&mut self, blocks: u32, cause: AppendCause) -> Option<u32> {
        if let Some(open) = self.open
            && self.segments[open as usize].blocks + blocks > SEGMENT_BLOCKS
        {
            self.segments[open as usize].state = SegmentState::Closed;
            self.open = None;
        }
        let number = match self.open {
            Some(open) => open,
            None => self.open_segment(cause)?,
        };
        let segment = &mut self.segments[number as usize];
        let first = number * SEGMENT_BLOCKS + segment.blocks;
        segment.blocks += blocks;
        Some(first)
    }

    fn open_segment(&mut self, cause: AppendCause) -> Option<u32> {
        if cause == AppendCause::Leaves && self.limit >= LEAST_WITH_RESERVE && self.available() <= 1 {
            return None;
        }
        let free = self.segments.iter().position(|segment| segment.state == SegmentState::Free);
        // A file that is larger than its limit, which was lowered, gets smaller only by copying what lives in it.
        if self.available() == 0 && (cause != AppendCause::Copied || free.is_none()) {
            return None;
        }
        let number = free.unwrap_or_else(|| {
            self.segments.push(SegmentUse::default());
            self.segments.len() - 1
        });
        self.segments[number] = SegmentUse { state: SegmentState::Open, ..SegmentUse::default() };
        self.open = Some(number as u32);
        self.open
    }

    /// Returns the segments that may still be opened.
    fn available(&self) -> usize {
        let used = self.segments.iter().filter(|segment| segment.state != SegmentState::Free).count();
        self.limit.saturating_sub(used)
    }

    /// Returns whether a segment is full, and something of it is left.
    pub(super) fn is_closed(&self, number: u32) -> bool {
        self.segments.get(number as usize).is_some_and(|segment| segment.state == SegmentState::Closed)
    }

    pub(super) fn segment_of(block: u32) -> u32 {
        block / SEGMENT_BLOCKS
    }

    /// Notes a record in the run at a block.
    pub(super) fn add_record(&mut self, block: u32) {
        if let Some(segment) = self.segments.get_mut(SegmentTable::segment_of(block) as usize) {
            segment.written += 1;
            segment.live += 1;
        }
    }

    /// Notes that a record in the run at a block is not referred to any more.
    pub(super) fn drop_record(&mut self, block: u32) {
        if let Some(segment) = self.segments.get_mut(SegmentTable::segment_of(block) as usize) {
            debug_assert!(segment.live > 0, "a record was given back twice");
            segment.live = segment.live.saturating_sub(1);
        }
    }

    /// Frees a segment if it is full and nothing of it is left; returns its used blocks.
    pub(super) fn free_if_empty(&mut self, number: u32) -> Option<u32> {
        let segment = self.segments.get_mut(number as usize)?;
        let is_over = matches!(segment.state, SegmentState::Closed | SegmentState::Damaged);
        (is_over && segment.live == 0).then(|| std::mem::take(segment).blocks)
    }

    /// Excludes a segment from copying.
    pub(super) fn mark_damaged(&mut self, number: u32) {
        if let Some(segment) = self.segments.get_mut(number as usize).filter(|it| it.state == SegmentState::Closed) {
            segment.state = SegmentState::Damaged;
        }
    }

    /// Returns the closed segment of which least is left, if that is less than half, and its used blocks. In a file
    /// near its limit: if that is less than nine tenths.
    pub(super) fn emptiest(&self, is_written: impl Fn(u32) -> bool) -> Option<(u32, u32)> {
        let closed = self.segments.iter().enumerate().filter(|(_, segment)| segment.state == SegmentState::Closed);
        let left = |segment: &SegmentUse| u64::from(segment.live) * 1_000 / u64::from(segment.written.max(1));
        let most = if self.available() <= 1 { 900 } else { 500 };
        let sparse = closed.filter(|(_, segment)| left(segment) < most);
        let written = sparse.filter(|(number, _)| is_written(*number as u32));
        let least = written.min_by_key(|(_, segment)| left(segment));
        least.map(|(number, segment)| (number as u32, segment.blocks))
    }

    /// Returns the records that are referred to, and the blocks of the segments in use.
    pub(super) fn totals(&self) -> (u64, u64) {
        let used = self.segments.iter().filter(|segment| segment.state != SegmentState::Free);
        used.fold((0, 0), |(live, blocks), segment| {
            (live + u64::from(segment.live), blocks + u64::from(segment.blocks))
        })
    }

    /// Begins anew: nothing is referred to any more.
    pub(super) fn clear(&mut self) {
        self.segments.clear();
        self.open = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_used_again_once_nothing_of_it_is_left() {
        let mut segments = SegmentTable::new(2);
        let half = SEGMENT_BLOCKS / 2 + 1;
        assert_eq!(segments.take_blocks(half, AppendCause::Leaves), Some(0));
        segments.add_record(0);
        assert_eq!(segments.free_if_empty(0), None, "it is open");
        assert_eq!(
            segments.take_blocks(half, AppendCause::Leaves),
            Some(SEGMENT_BLOCKS),
            "it does not fit behind the first"
        );
        segments.add_record(SEGMENT_BLOCKS);
        assert_eq!(segments.take_blocks(half, AppendCause::Leaves), None, "the file is full");
        assert_eq!(segments.emptiest(|_| true), None, "all of both is left");
        segments.add_record(3);
        segments.drop_record(3);
        assert_eq!(segments.emptiest(|_| true), Some((0, half)), "half of it, in a file that is full");
        segments.drop_record(3);
        assert_eq!(segments.emptiest(|_| false), None, "it still waits for the disk");
        assert_eq!(segments.free_if_empty(0), Some(half));
        assert_eq!(segments.take_blocks(half, AppendCause::Leaves), Some(0));
        segments.set_limit(1);
        segments.drop_record(SEGMENT_BLOCKS);
        assert_eq!(segments.take_blocks(half, AppendCause::Leaves), None, "it has more than it may have");
        segments.set_limit(3);
        segments.take_blocks(half, AppendCause::Leaves);
        assert_eq!(segments.take_blocks(half, AppendCause::Leaves), None, "the last one is kept");
        assert_eq!(segments.take_blocks(half, AppendCause::Copied), Some(2 * SEGMENT_BLOCKS));
        segments.clear();
        segments.take_blocks(half, AppendCause::Leaves);
        segments.add_record(0);
        segments.take_blocks(half, AppendCause::Leaves);
        assert_eq!(segments.totals(), (1, 2 * u64::from(half)));
    }
}
