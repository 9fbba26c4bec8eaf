//! The steps of a transaction, as a commit carries them.

use sandstorm_net::rpc::{
    COMMIT_BYTES, COMMIT_RANGES, COMMIT_READS, COMMIT_ROW_BYTES, COMMIT_ROWS, COMMIT_WRITES, CommitStep, MAX_KEY_LEN,
    push_commit_step,
};

use crate::Error;

/// The text for a transaction over [`COMMIT_RANGES`].
pub(crate) const TOO_MANY_RANGES: &str = "a transaction has read over 256 ranges and counts";
/// The text for one over [`COMMIT_BYTES`] of keys that it has read, or [`COMMIT_ROW_BYTES`] of those of its ranges.
pub(crate) const TOO_LONG_KEYS: &str = "the keys that a transaction has read are over 1 MiB";
/// The text for a range whose deletes are over [`COMMIT_WRITES`].
pub(crate) const TOO_MANY_DELETES: &str =
    "a transaction writes over 256 keys: delete the range by a smaller limit, in several transactions";

/// The steps of a transaction's commit.
#[derive(Debug, Default)]
pub struct CommitMessage {
    body: Vec<u8>,
    count: u64,
    /// Keys that were read, ranges with counts, changes.
    kinds: [usize; 3],
    /// Records of ranges.
    rows: usize,
    /// Bytes of keys that were read, of what ranges have met, of what is written.
    bytes: [usize; 3],
    /// A key whose server has all of them, in a cluster.
    first_key: Option<Vec<u8>>,
}

impl CommitMessage {
    /// Appends a step.
    ///
    /// # Errors
    /// [`Error::TooLarge`] beyond a limit of transactions.
    pub fn push(&mut self, step: &CommitStep<'_>) -> Result<(), Error> {
        let (kind, bytes) = match *step {
            CommitStep::Read { key, .. } => (0, key.len()),
            CommitStep::Range { from, to, rows, .. } => {
                self.rows += rows.len();
                (1, from.len() + to.len() + rows.map(|row| row.key.len()).sum::<usize>())
            }
            CommitStep::Count { from, to, .. } => (1, from.len() + to.len()),
            CommitStep::Put { key, value, .. } => (2, key.len() + value.len()),
            CommitStep::Delete { key, .. } => (2, key.len()),
        };
        self.kinds[kind] += 1;
        self.bytes[kind] += bytes;
        let [reads, ranges, writes] = self.kinds;
        let [read_bytes, row_bytes, written_bytes] = self.bytes;
        let what = if step.key().len() > MAX_KEY_LEN {
            "a key is over 64 KiB"
        } else if reads > COMMIT_READS {
            "a transaction has read over 1,024 keys"
        } else if ranges > COMMIT_RANGES {
            TOO_MANY_RANGES
        } else if self.rows > COMMIT_ROWS {
            "the ranges of a transaction have met over 2,048 records"
        } else if writes > COMMIT_WRITES {
            "a transaction writes over 256 keys"
        } else if read_bytes > COMMIT_BYTES || row_bytes > COMMIT_ROW_BYTES {
            TOO_LONG_KEYS
        } else if written_bytes > COMMIT_BYTES {
            "the keys and values that a transaction writes are over 1 MiB"
        } else {
            if self.first_key.is_none() && !step.is_of_many_keys() {
                self.first_key = Some(step.key().to_vec());
            }
            push_commit_step(&mut self.body, step);
            self.count += 1;
            return Ok(());
        };
        Err(Error::TooLarge { what: what.to_owned() })
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// The key of the first step that has one.
    pub(crate) fn first_key(&self) -> Option<&[u8]> {
        self.first_key.as_deref()
    }
}
