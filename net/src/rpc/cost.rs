//! What one call cost: sent behind its answer's header if its request asks for it.

use super::{u32_at, u64_at};

/// Operation flag of an invoke: the answer tells what the call cost. Of the answer: its key is a [`CallCost`].
pub const OP_FLAG_COST: u8 = 0x04;

/// Bytes of a cost on the wire. A reader takes those that it knows of a longer one.
pub const CALL_COST_BYTES: usize = 56;

/// What one call cost the server and its tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCost {
    /// CPU time that it computed, in nanoseconds; what its tenant is charged.
    pub cpu_ns: u64,
    /// Time from its request's arrival to its answer, in nanoseconds.
    pub wall_ns: u64,
    /// The part of it before its first turn, in nanoseconds.
    pub first_turn_ns: u64,
    /// Its turns. Between two of them it waited: for a record to come from memory, or for others' turns.
    pub turns: u32,
    /// Turns that ended because it had computed for a slice.
    pub switches: u32,
    /// Records that it read.
    pub reads: u64,
    /// Bytes of their values.
    pub read_bytes: u64,
    /// How often its transaction came to its commit: once, and once more for each conflict. 0: it had none to make.
    pub commit_tries: u64,
}

impl CallCost {
    /// Nanoseconds in which it did not compute.
    pub const fn waiting_ns(&self) -> u64 {
        self.wall_ns.saturating_sub(self.cpu_ns)
    }

    /// Its bytes: the fields in their order, little-endian.
    pub fn encode(&self) -> [u8; CALL_COST_BYTES] {
        let mut bytes = [0; CALL_COST_BYTES];
        let words = [
            self.cpu_ns,
            self.wall_ns,
            self.first_turn_ns,
            u64::from(self.turns) | u64::from(self.switches) << 32,
            self.reads,
            self.read_bytes,
            self.commit_tries,
        ];
        for (field, word) in bytes.chunks_exact_mut(8).zip(words) {
            field.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads a cost; `None`: there are fewer bytes than it has.
    pub fn decode(bytes: &[u8]) -> Option<CallCost> {
        let bytes = bytes.first_chunk::<CALL_COST_BYTES>()?;
        Some(CallCost {
            cpu_ns: u64_at(bytes, 0),
            wall_ns: u64_at(bytes, 8),
            first_turn_ns: u64_at(bytes, 16),
            turns: u32_at(bytes, 24),
            switches: u32_at(bytes, 28),
            reads: u64_at(bytes, 32),
            read_bytes: u64_at(bytes, 40),
            commit_tries: u64_at(bytes, 48),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_read_back_from_its_bytes_and_from_longer_ones() {
        let cost = CallCost {
            cpu_ns: 1,
            wall_ns: u64::MAX,
            first_turn_ns: 3,
            turns: 4,
            switches: u32::MAX,
            reads: 6,
            read_bytes: 7,
            commit_tries: 8,
        };
        let bytes = cost.encode();
        assert_eq!(CallCost::decode(&bytes), Some(cost));
        assert_eq!(CallCost::decode(&[&bytes[..], &[9; 3]].concat()), Some(cost));
        assert_eq!(CallCost::decode(&bytes[1..]), None);
    }
}
