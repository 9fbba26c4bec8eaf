//! A table from addresses to numbers, in few bytes: the number at an address is that of the last entry at or before it.
//!
//! Bytes: the number of blocks (u32), for each block three u32 (the address and the number of its first entry, and
//! where its further ones begin behind the blocks), and the further entries: the distance of the address and the
//! difference of the number from those of the entry before, in LEB128. A look reads one block.

use super::{put_number, take_number};

/// Entries of a block beside its first one.
const BLOCK_ENTRIES: usize = 31;
/// Bytes of a block's first entry.
const BLOCK_BYTES: usize = 12;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RangeTable {
    /// Address, number, and where the further entries begin.
    blocks: Box<[[u32; 3]]>,
    entries: Box<[u8]>,
}

impl RangeTable {
    /// Reads a table; `None`: these bytes are none.
    pub(super) fn read(bytes: &[u8]) -> Option<RangeTable> {
        let (count, rest) = bytes.split_first_chunk::<4>()?;
        let count = u32::from_le_bytes(*count) as usize;
        let (blocks, entries) = rest.split_at_checked(count.checked_mul(BLOCK_BYTES)?)?;
        let word = |block: &[u8], at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap_or_default());
        let blocks = blocks.chunks_exact(BLOCK_BYTES).map(|block| [word(block, 0), word(block, 4), word(block, 8)]);
        Some(RangeTable { blocks: blocks.collect(), entries: entries.into() })
    }

    /// Bytes of memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.len() * BLOCK_BYTES + self.entries.len()
    }

    /// The number at an address.
    pub(super) fn value_at(&self, wanted: u32) -> Option<u32> {
        let behind = self.blocks.partition_point(|[address, ..]| *address <= wanted);
        let [mut address, mut value, at] = *self.blocks.get(behind.checked_sub(1)?)?;
        let mut rest = self.entries.get(at as usize..)?;
        for _ in 0..BLOCK_ENTRIES {
            let (Some(step), Some(change)) = (take_number(&mut rest), take_number(&mut rest)) else { break };
            address = address.wrapping_add(step);
            // A step of 0 is the end of a short block.
            if step == 0 || address > wanted {
                break;
            }
            value = value.wrapping_add(unfold(change));
        }
        Some(value)
    }

    /// A table of these entries, which are in the order of their addresses; of several of one address the last counts.
    pub(super) fn encode(entries: &[(u32, u32)]) -> Vec<u8> {
        let mut kept: Vec<(u32, u32)> = Vec::with_capacity(entries.len());
        for entry in entries {
            if kept.last().is_some_and(|last| last.0 == entry.0) {
                kept.pop();
            }
            if kept.last().is_none_or(|last| last.1 != entry.1) {
                kept.push(*entry);
            }
        }
        let (mut heads, mut tails) = (Vec::new(), Vec::new());
        for block in kept.chunks(BLOCK_ENTRIES + 1) {
            let (mut address, mut value) = block[0];
            [address, value, tails.len() as u32].iter().for_each(|word| heads.extend(word.to_le_bytes()));
            for next in &block[1..] {
                put_number(&mut tails, next.0 - address);
                put_number(&mut tails, fold(next.1.wrapping_sub(value)));
                (address, value) = *next;
            }
            if block.len() <= BLOCK_ENTRIES {
                tails.extend([0, 0]);
            }
        }
        let blocks = (heads.len() / BLOCK_BYTES) as u32;
        [&blocks.to_le_bytes()[..], &heads, &tails].concat()
    }
}

/// A signed difference as a number that is small if the difference is.
fn fold(difference: u32) -> u32 {
    (difference << 1) ^ ((difference as i32 >> 31) as u32)
}

/// The reverse of [`fold`].
fn unfold(folded: u32) -> u32 {
    (folded >> 1) ^ (folded & 1).wrapping_neg()
}
