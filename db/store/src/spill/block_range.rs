//! Blocks of a spill file that are read at once, with the records of several runs.

use super::device::AlignedBytes;
use super::file::SpillFile;
use super::format::{BLOCK_BYTES, LocatedRecord, SpillAddress, SpillRecord, records, verify};

/// Blocks of one read, at most: 256 KiB, at which a disk has nearly its full rate.
const MOST_BLOCKS: u32 = 64;
/// Blocks between two runs that are read along: 32 KiB take a disk less time than a further read.
const GAP_BLOCKS: u32 = 8;

/// Blocks that were read.
pub(crate) struct BlockRange {
    first: u32,
    file: u64,
    bytes: AlignedBytes,
}

/// Returns how many of these runs, which are in the order of their blocks, are to be read at once, one at least; and
/// the blocks from the first one up to the end of the last one.
pub(crate) fn near_runs(runs: impl Iterator<Item = SpillAddress>) -> (usize, std::ops::Range<u32>) {
    let (mut count, mut range) = (0, 0..0);
    for address in runs {
        let end = address.block.saturating_add(address.blocks());
        if count == 0 {
            range = address.block..end;
        } else if address.block > range.end.saturating_add(GAP_BLOCKS) || end - range.start > MOST_BLOCKS {
            break;
        }
        (count, range.end) = (count + 1, range.end.max(end));
    }
    (count, range)
}

impl BlockRange {
    /// Reads blocks of a file. `None`: the disk does not read all of them.
    pub(crate) fn read(file: &SpillFile, blocks: std::ops::Range<u32>) -> Option<BlockRange> {
        let mut bytes = AlignedBytes::zeroed(blocks.len() * BLOCK_BYTES)?;
        file.read_blocks(blocks.start, bytes.get_mut()).ok()?;
        Some(BlockRange { first: blocks.start, file: file.number(), bytes })
    }

    /// Returns a record of the run at an address. `None`: the run is not as it was written, or still waits for the
    /// disk, or the record is not in it.
    pub(crate) fn record(&self, address: SpillAddress, hash: u64, version: u64) -> Option<SpillRecord<'_>> {
        let start = address.block.checked_sub(self.first)? as usize * BLOCK_BYTES;
        let run = self.bytes.get().get(start..start + address.blocks() as usize * BLOCK_BYTES)?;
        verify(run, self.file, address.block).ok()?;
        let found = records(run).find(|record| record.hash == hash && record.version == version)?;
        let LocatedRecord { hash, version, expires_at_ms, flags, key, value } = found;
        Some(SpillRecord { hash, version, expires_at_ms, flags, key: run.get(key)?, value: run.get(value)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_read_at_once_that_lie_near_each_other_and_no_more_than_a_bound() {
        let near =
            |blocks: &[u32]| near_runs(blocks.iter().map(|block| SpillAddress { block: *block, length_class: 0 }));
        assert_eq!(near(&[5]), (1, 5..6));
        assert_eq!(near(&[5, 5, 6, 14, 15]), (5, 5..16), "several records of a run, and gaps");
        assert_eq!(near(&[5, 15, 16]), (1, 5..6), "a gap that is too wide");
        let many: Vec<u32> = (100..400).collect();
        assert_eq!(near(&many), (MOST_BLOCKS as usize, 100..100 + MOST_BLOCKS));
        assert_eq!(near(&[]), (0, 0..0));
    }
}
