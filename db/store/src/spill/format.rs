//! The format of a spill file: runs of blocks. A run holds the records that share a block, or one large record. It
//! begins with its own address and the file's number, under a checksum of the whole run: so a block that was
//! damaged, or read or written in the wrong place, is told from the right one.
//!
//! ```text
//! run:    magic u32 | crc32c u32 (of the rest) | file u64 | block u32 | used bytes u32 | records u32 | format u32
//!         | records
//! record: hash u64 | version u64 | expires_at_ms u64 | flags u32 | value_len u32 | key_len u32 | key | value
//! ```
//! Little endian. A file lives as long as its server runs, so there is one format.

use std::ops::Range;

/// Bytes of a block: what disks write as a whole, and what direct reads are aligned to.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes before a run's first record.
pub(super) const RUN_HEADER_BYTES: usize = 32;
/// Bytes of a record before its key.
const RECORD_HEADER_BYTES: usize = 36;
const RUN_MAGIC: u32 = u32::from_le_bytes(*b"SpRn");
const RUN_FORMAT: u32 = 1;

/// Numbers of blocks that a run may have: a cold record's memory has five bits for it.
const RUN_BLOCKS: [u16; 32] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512,
    768, 1024, 2080,
];
/// Blocks of the longest run: one largest record.
pub(super) const MOST_RUN_BLOCKS: u32 = 2080;
const _: () = assert!(
    MOST_RUN_BLOCKS as usize * BLOCK_BYTES
        >= RUN_HEADER_BYTES + RECORD_HEADER_BYTES + crate::limits::MAX_KEY_BYTES + crate::limits::MAX_VALUE_BYTES
);

/// The place of a record's run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpillAddress {
    /// The first block, counted from the start of the file.
    pub(crate) block: u32,
    /// The number of its length in `RUN_BLOCKS`, below 32.
    pub(crate) length_class: u8,
}

impl SpillAddress {
    /// Returns the blocks of the run.
    pub(super) fn blocks(self) -> u32 {
        u32::from(RUN_BLOCKS[usize::from(self.length_class) % RUN_BLOCKS.len()])
    }

    /// Bytes of the run: what is read for one of its records.
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.blocks()) * BLOCK_BYTES as u64
    }
}

/// Returns the class of the shortest run that takes so many bytes, its header included; `None` beyond the longest.
pub(super) fn length_class(bytes: usize) -> Option<u8> {
    let blocks = bytes.div_ceil(BLOCK_BYTES);
    let class = RUN_BLOCKS.iter().position(|run| usize::from(*run) >= blocks)?;
    u8::try_from(class).ok()
}

/// A record as it goes to the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpillRecord<'r> {
    pub(crate) hash: u64,
    pub(crate) version: u64,
    pub(crate) expires_at_ms: u64,
    pub(crate) flags: u32,
    pub(crate) key: &'r [u8],
    pub(crate) value: &'r [u8],
}

impl SpillRecord<'_> {
    pub(super) fn encoded_len(&self) -> usize {
        RECORD_HEADER_BYTES + self.key.len() + self.value.len()
    }

    /// Writes the record at the start of `into`, which has room.
    pub(super) fn encode(&self, into: &mut [u8]) {
        let mut rest = into;
        let (value_len, key_len) = (self.value.len() as u32, self.key.len() as u32);
        let mut push = |bytes: &[u8]| {
            let (here, behind) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            rest = behind;
        };
        push(&self.hash.to_le_bytes());
        push(&self.version.to_le_bytes());
        push(&self.expires_at_ms.to_le_bytes());
        push(&self.flags.to_le_bytes());
        push(&value_len.to_le_bytes());
        push(&key_len.to_le_bytes());
        push(self.key);
        push(self.value);
    }
}

/// A record in a run that was read: where its key and value lie there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LocatedRecord {
    pub(super) hash: u64,
    pub(super) version: u64,
    pub(super) expires_at_ms: u64,
    pub(super) flags: u32,
    pub(super) key: Range<usize>,
    pub(super) value: Range<usize>,
}

/// What is wrong with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunDamage {
    /// The bytes are not those that were written.
    Checksum,
    /// It is a run of another place or file.
    Misdirected,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// Writes a run's header but for its checksum. `used` counts the header.
pub(super) fn begin_header(run: &mut [u8], file: u64, block: u32, used: usize, records: u32) {
    run[..4].copy_from_slice(&RUN_MAGIC.to_le_bytes());
    run[8..16].copy_from_slice(&file.to_le_bytes());
    run[16..20].copy_from_slice(&block.to_le_bytes());
    run[20..24].copy_from_slice(&(used as u32).to_le_bytes());
    run[24..28].copy_from_slice(&records.to_le_bytes());
    run[28..32].copy_from_slice(&RUN_FORMAT.to_le_bytes());
}

/// Writes the checksum of a complete run.
pub(super) fn seal_header(run: &mut [u8]) {
    let used = used_bytes(run);
    let sum = crc32c::crc32c(&run[8..used]);
    run[4..8].copy_from_slice(&sum.to_le_bytes());
}

/// Returns the used bytes of a run, as its header says, within its length.
pub(super) fn used_bytes(run: &[u8]) -> usize {
    u32_at(run, 20).map_or(0, |used| used as usize).clamp(RUN_HEADER_BYTES.min(run.len()), run.len())
}

/// Returns the used bytes of a run that is longer than what was read of it, as its header says.
pub(super) fn claimed_bytes(run: &[u8]) -> usize {
    u32_at(run, 20).map_or(0, |used| used as usize)
}

/// Checks a run that was read for a block of a file.
pub(super) fn verify(run: &[u8], file: u64, block: u32) -> Result<(), RunDamage> {
    let used = u32_at(run, 20).map_or(0, |used| used as usize);
    let is_whole = run.len() >= RUN_HEADER_BYTES
        && (RUN_HEADER_BYTES..=run.len()).contains(&used)
        && u32_at(run, 0) == Some(RUN_MAGIC)
        && u32_at(run, 28) == Some(RUN_FORMAT)
        && u32_at(run, 4) == Some(crc32c::crc32c(&run[8..used]));
    if !is_whole {
        return Err(RunDamage::Checksum);
    }
    let is_here = u64_at(run, 8) == Some(file) && u32_at(run, 16) == Some(block);
    if is_here { Ok(()) } else { Err(RunDamage::Misdirected) }
}

/// Returns the records of a run.
pub(super) fn records(run: &[u8]) -> impl Iterator<Item = LocatedRecord> + '_ {
    let (used, mut at) = (used_bytes(run), RUN_HEADER_BYTES);
    std::iter::from_fn(move || {
        let run = run.get(..used)?;
        let (value_len, key_len) = (u32_at(run, at + 28)? as usize, u32_at(run, at + 32)? as usize);
        let key = at + RECORD_HEADER_BYTES..at.checked_add(RECORD_HEADER_BYTES)?.checked_add(key_len)?;
        let value = key.end..key.end.checked_add(value_len)?;
        if value.end > used {
            return None;
        }
        let (hash, version) = (u64_at(run, at)?, u64_at(run, at + 8)?);
        let (expires_at_ms, flags) = (u64_at(run, at + 16)?, u32_at(run, at + 24)?);
        at = value.end;
        Some(LocatedRecord { hash, version, expires_at_ms, flags, key, value })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_length_has_the_shortest_run_that_takes_it() {
        assert_eq!(length_class(1), Some(0));
        assert_eq!(length_class(BLOCK_BYTES), Some(0));
        assert_eq!(length_class(BLOCK_BYTES + 1), Some(1));
        assert_eq!(length_class(MOST_RUN_BLOCKS as usize * BLOCK_BYTES), Some(31));
        assert_eq!(length_class(MOST_RUN_BLOCKS as usize * BLOCK_BYTES + 1), None);
        assert!(RUN_BLOCKS.windows(2).all(|pair| pair[0] < pair[1]));
    }

    proptest! {
        /// Whatever is read: nothing panics, and what is found lies within what was read.
        #[test]
        fn any_bytes_are_looked_through(run in prop::collection::vec(any::<u8>(), 0..300)) {
            let _damaged = verify(&run, 1, 2);
            for record in records(&run) {
                prop_assert!(run.get(record.key).is_some() && run.get(record.value).is_some());
            }
        }

        /// A changed bit of the used part is found, whichever it is; so is another address.
        #[test]
        fn a_flipped_bit_is_found(bit in 0usize..8 * 120, block in 1u32..9) {
            let mut run = vec![0; BLOCK_BYTES];
            let record = SpillRecord { hash: 3, version: 4, expires_at_ms: 5, flags: 6, key: &[7; 20], value: &[8; 32] };
            let used = RUN_HEADER_BYTES + record.encoded_len();
            record.encode(&mut run[RUN_HEADER_BYTES..]);
            begin_header(&mut run, 77, 10, used, 1);
            seal_header(&mut run);
            prop_assert_eq!(used, 120);
            prop_assert_eq!(verify(&run, 77, 10), Ok(()));
            prop_assert_eq!(verify(&run, 77, 10 + block), Err(RunDamage::Misdirected));
            prop_assert_eq!(verify(&run, 76, 10), Err(RunDamage::Misdirected));
            let found: Vec<_> = records(&run).collect();
            prop_assert_eq!((found.len(), found[0].hash, found[0].version), (1, 3, 4));
            prop_assert_eq!((&run[found[0].key.clone()], &run[found[0].value.clone()]), (record.key, record.value));
            run[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(verify(&run, 77, 10).is_err());
        }
    }
}
