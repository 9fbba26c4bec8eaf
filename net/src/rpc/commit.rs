//! The steps of a transaction that a client commits: the value of an [`OpKind::Commit`].
//!
//! Each step is an operation, header and all, so that no second format has to be read:
//!
//! | step | as |
//! |---|---|
//! | a record was read | get: number = its version; 0: there was none |
//! | a range was read | range: below |
//! | keys of a range were counted | count: key = the smallest key, value = the end, number = how many there were |
//! | a record is written | put, with [`OP_FLAG_TTL`] where it expires |
//! | a record is deleted | delete |
//!
//! A range's key is the smallest key; its number how many records it had, with [`RANGE_BACKWARD`] from the largest on;
//! its value `len u32, end`, then of each record `version u64, len u32, key`, in the order in which they were read.

use thiserror::Error;

use super::body::split_length_prefixed;
use super::{
    BodyDecodeError, Condition, MAX_KEY_LEN, MessageDecodeError, OP_FLAG_TTL, OpKind, Operation, OperationIter,
    RANGE_BACKWARD, encode_operation, push_key, split_ttl,
};

/// Keys that one commit may have read. Each is looked at again in one go: about as long as a slice.
pub const COMMIT_READS: usize = 1024;
/// Ranges that one commit may have read or counted. Each is looked up in the table's order again while its writers
/// wait.
pub const COMMIT_RANGES: usize = 256;
/// Keys that one commit may write or delete: as many puts as one message may hold, for the same reason.
pub const COMMIT_WRITES: usize = 256;
/// Steps of one commit.
pub const COMMIT_STEPS: usize = COMMIT_READS + COMMIT_RANGES + COMMIT_WRITES;
/// Bytes of keys and values that one commit may write, and of keys that it may have read. They are copied and compared
/// while writers of the same stripes wait.
pub const COMMIT_BYTES: usize = 1 << 20;
/// Records that the ranges of one commit may have met together. Each is looked at again while the tables' writers wait
/// on all workers; twice as many as one message reads.
pub const COMMIT_ROWS: usize = 2_048;
/// Bytes of keys that the ranges of one commit may have met together, those of their ends and of counts' included: they
/// are compared again.
pub const COMMIT_ROW_BYTES: usize = 1 << 20;

/// A step of a commit, borrowed from its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitStep<'m> {
    /// The record under the key had this version; 0: there was none.
    Read {
        /// The table's id.
        table: u64,
        /// The record's key.
        key: &'m [u8],
        /// Its version.
        version: u64,
    },
    /// The records of an ordered table with `from <= key < to` (empty `to`: to the end) were these and no others.
    Range {
        /// The table's id.
        table: u64,
        /// The smallest key that may be part of it.
        from: &'m [u8],
        /// The key before which it ends.
        to: &'m [u8],
        /// The largest key comes first.
        backward: bool,
        /// The records.
        rows: CommitRows<'m>,
    },
    /// An ordered table had so many keys with `from <= key < to` (empty `to`: to the end), whichever they were.
    Count {
        /// The table's id.
        table: u64,
        /// The smallest key that may be part of it.
        from: &'m [u8],
        /// The key before which it ends.
        to: &'m [u8],
        /// How many there were.
        keys: u64,
    },
    /// The record is written.
    Put {
        /// The table's id.
        table: u64,
        /// The record's key.
        key: &'m [u8],
        /// Its value.
        value: &'m [u8],
        /// Its user flags.
        user_flags: u32,
        /// Milliseconds until it expires; 0: never.
        ttl_ms: u64,
    },
    /// The record is deleted, if there is one.
    Delete {
        /// The table's id.
        table: u64,
        /// The record's key.
        key: &'m [u8],
    },
}

impl<'m> CommitStep<'m> {
    /// The table's id.
    pub const fn table(&self) -> u64 {
        match self {
            CommitStep::Read { table, .. }
            | CommitStep::Range { table, .. }
            | CommitStep::Count { table, .. }
            | CommitStep::Put { table, .. }
            | CommitStep::Delete { table, .. } => *table,
        }
    }

    /// The key; the smallest key of a range or a count.
    pub const fn key(&self) -> &'m [u8] {
        match self {
            CommitStep::Read { key, .. } | CommitStep::Put { key, .. } | CommitStep::Delete { key, .. } => key,
            CommitStep::Range { from, .. } | CommitStep::Count { from, .. } => from,
        }
    }

    /// Whether it is about all keys of an ordered table between two, not about one key.
    pub const fn is_of_many_keys(&self) -> bool {
        matches!(self, CommitStep::Range { .. } | CommitStep::Count { .. })
    }

    /// Whether it changes records.
    pub const fn writes(&self) -> bool {
        matches!(self, CommitStep::Put { .. } | CommitStep::Delete { .. })
    }
}

/// A record that a range has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitRow<'m> {
    /// Its key.
    pub key: &'m [u8],
    /// Its version.
    pub version: u64,
}

/// The records that a range has met, in their order. Those of a decoded step are well-formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitRows<'m> {
    rest: &'m [u8],
    count: u32,
}

impl<'m> CommitRows<'m> {
    /// The `count` records in `body`, as [`push_commit_row`] writes them.
    pub const fn new(count: u32, body: &'m [u8]) -> CommitRows<'m> {
        CommitRows { rest: body, count }
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn first(rest: &'m [u8], index: u64) -> Result<(CommitRow<'m>, &'m [u8]), BodyDecodeError> {
        let (version, rest) = rest.split_first_chunk::<8>().ok_or(BodyDecodeError::Short(index))?;
        let (key, rest) = split_length_prefixed(rest, index, MAX_KEY_LEN)?;
        Ok((CommitRow { key, version: u64::from_le_bytes(*version) }, rest))
    }

    /// Whether all of them are there, and nothing else is.
    fn check(&self) -> Result<(), BodyDecodeError> {
        let mut rest = self.rest;
        for index in 0..u64::from(self.count) {
            (_, rest) = CommitRows::first(rest, index)?;
        }
        if rest.is_empty() { Ok(()) } else { Err(BodyDecodeError::Trailing(rest.len())) }
    }
}

impl<'m> Iterator for CommitRows<'m> {
    type Item = CommitRow<'m>;

    fn next(&mut self) -> Option<CommitRow<'m>> {
        self.count = self.count.checked_sub(1)?;
        let (row, rest) = CommitRows::first(self.rest, 0).ok()?;
        self.rest = rest;
        Some(row)
    }
}

/// The reason why a value is not the steps of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CommitDecodeError {
    /// A step is no operation.
    #[error("a step of the commit is malformed: {0}")]
    Step(#[from] MessageDecodeError),
    /// An operation that is no step.
    #[error("step {0} of the commit is no get, range, count, put or delete")]
    NoStep(u64),
    /// A condition, which a step has not.
    #[error("step {0} of the commit has a condition: read the record in the transaction instead")]
    Conditional(u64),
    /// The value of a put or range.
    #[error("the value of step {0} of the commit is malformed: {1}")]
    Body(u64, BodyDecodeError),
    /// Keys, ranges or changes over a limit.
    #[error(
        "a commit has at most {COMMIT_READS} keys that were read, {COMMIT_RANGES} ranges and counts and \
         {COMMIT_WRITES} changes"
    )]
    Steps,
}

/// Walks the steps of a commit. Ends after the first error.
#[derive(Clone, Debug)]
pub struct CommitStepIter<'m> {
    operations: OperationIter<'m>,
    next: u64,
    /// Reads, ranges with counts, and changes that may still come.
    left: [usize; 3],
}

impl<'m> CommitStepIter<'m> {
    /// The `count` steps in `body`: a commit's number and value.
    pub fn new(count: u64, body: &'m [u8]) -> CommitStepIter<'m> {
        // More than a commit may have: it is refused before the last of them.
        let count = u16::try_from(count).unwrap_or(u16::MAX);
        let left = [COMMIT_READS, COMMIT_RANGES, COMMIT_WRITES];
        CommitStepIter { operations: OperationIter { rest: body, next: 0, count }, next: 0, left }
    }

    fn step(&mut self, operation: &Operation<'m>) -> Result<CommitStep<'m>, CommitDecodeError> {
        let index = self.next;
        if operation.condition != Condition::Always {
            return Err(CommitDecodeError::Conditional(index));
        }
        let Operation { table, key, value, number, user_flags, .. } = *operation;
        let malformed = |error| CommitDecodeError::Body(index, error);
        let (kind, step) = match operation.op {
            OpKind::Get if value.is_empty() => (0, CommitStep::Read { table, key, version: number }),
            OpKind::Get => return Err(malformed(BodyDecodeError::Trailing(value.len()))),
            OpKind::Range => {
                let (to, rest) = split_length_prefixed(value, 0, MAX_KEY_LEN + 1).map_err(malformed)?;
                let rows = CommitRows::new(number as u32, rest);
                rows.check().map_err(malformed)?;
                let backward = number & RANGE_BACKWARD != 0;
                (1, CommitStep::Range { table, from: key, to, backward, rows })
            }
            OpKind::Count if value.len() > MAX_KEY_LEN + 1 => return Err(malformed(BodyDecodeError::TooLarge(0))),
            OpKind::Count => (1, CommitStep::Count { table, from: key, to: value, keys: number }),
            OpKind::Put => {
                let (ttl_ms, value) = split_ttl(operation).map_err(malformed)?;
                (2, CommitStep::Put { table, key, value, user_flags, ttl_ms: ttl_ms.unwrap_or(0) })
            }
            OpKind::Delete if value.is_empty() => (2, CommitStep::Delete { table, key }),
            OpKind::Delete => return Err(malformed(BodyDecodeError::Trailing(value.len()))),
            OpKind::Ping
            | OpKind::Hello
            | OpKind::MultiGet
            | OpKind::Increment
            | OpKind::Invoke
            | OpKind::Commit
            | OpKind::Rank
            | OpKind::Nth
            | OpKind::Ttl
            | OpKind::Touch => return Err(CommitDecodeError::NoStep(index)),
        };
        let left: &mut usize = &mut self.left[kind];
        *left = left.checked_sub(1).ok_or(CommitDecodeError::Steps)?;
        Ok(step)
    }
}

impl<'m> Iterator for CommitStepIter<'m> {
    type Item = Result<CommitStep<'m>, CommitDecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = match self.operations.next()? {
            Ok(operation) => self.step(&operation),
            Err(error) => Err(error.into()),
        };
        self.next += 1;
        if step.is_err() {
            self.operations = OperationIter { rest: &[], next: 0, count: 0 };
        }
        Some(step)
    }
}

/// Appends a record that a range has met to the body of its step.
pub fn push_commit_row(body: &mut Vec<u8>, row: &CommitRow<'_>) {
    body.extend_from_slice(&row.version.to_le_bytes());
    push_key(body, row.key);
}

/// Appends a step to the body of a commit.
pub fn push_commit_step(body: &mut Vec<u8>, step: &CommitStep<'_>) {
    match *step {
        CommitStep::Read { table, key, version } => {
            encode_operation(&Operation { number: version, ..Operation::get(table, key) }, body);
        }
        CommitStep::Range { table, from, to, backward, rows } => {
            let mut value = Vec::with_capacity(4 + to.len() + rows.rest.len());
            value.extend_from_slice(&(to.len() as u32).to_le_bytes());
            value.extend_from_slice(to);
            value.extend_from_slice(rows.rest);
            encode_operation(&Operation::range(table, from, &value, rows.count, backward), body);
        }
        CommitStep::Count { table, from, to, keys } => {
            encode_operation(&Operation { number: keys, ..Operation::count(table, from, to) }, body);
        }
        CommitStep::Put { table, key, value, user_flags, ttl_ms: 0 } => {
            encode_operation(&Operation { user_flags, ..Operation::put(table, key, value) }, body);
        }
        CommitStep::Put { table, key, value, user_flags, ttl_ms } => {
            let value = [&ttl_ms.to_le_bytes()[..], value].concat();
            let put = Operation { user_flags, flags: OP_FLAG_TTL, ..Operation::put(table, key, &value) };
            encode_operation(&put, body);
        }
        CommitStep::Delete { table, key } => encode_operation(&Operation::delete(table, key), body),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum OwnedStep {
        Read(u64, Vec<u8>, u64),
        Range(u64, Vec<u8>, Vec<u8>, bool, Vec<(Vec<u8>, u64)>),
        Count(u64, Vec<u8>, Vec<u8>, u64),
        Put(u64, Vec<u8>, Vec<u8>, u32, u64),
        Delete(u64, Vec<u8>),
    }

    fn step() -> impl Strategy<Value = OwnedStep> {
        let bytes = || vec(any::<u8>(), 0..20);
        let rows = vec((bytes(), any::<u64>()), 0..5);
        prop_oneof![
            (any::<u64>(), bytes(), any::<u64>()).prop_map(|(t, k, v)| OwnedStep::Read(t, k, v)),
            (any::<u64>(), bytes(), bytes(), any::<bool>(), rows)
                .prop_map(|(t, from, to, backward, rows)| OwnedStep::Range(t, from, to, backward, rows)),
            (any::<u64>(), bytes(), bytes(), any::<u64>()).prop_map(|(t, k, to, n)| OwnedStep::Count(t, k, to, n)),
            (any::<u64>(), bytes(), bytes(), any::<u32>(), any::<u64>())
                .prop_map(|(t, k, v, flags, ttl)| OwnedStep::Put(t, k, v, flags, ttl)),
            (any::<u64>(), bytes()).prop_map(|(t, k)| OwnedStep::Delete(t, k)),
        ]
    }

    fn push(body: &mut Vec<u8>, step: &OwnedStep) {
        match step {
            OwnedStep::Read(table, key, version) => {
                push_commit_step(body, &CommitStep::Read { table: *table, key, version: *version });
            }
            OwnedStep::Range(table, from, to, backward, rows) => {
                let mut encoded = Vec::new();
                rows.iter().for_each(|(key, version)| {
                    push_commit_row(&mut encoded, &CommitRow { key, version: *version });
                });
                let rows = CommitRows::new(rows.len() as u32, &encoded);
                push_commit_step(body, &CommitStep::Range { table: *table, from, to, backward: *backward, rows });
            }
            OwnedStep::Count(table, from, to, keys) => {
                push_commit_step(body, &CommitStep::Count { table: *table, from, to, keys: *keys });
            }
            OwnedStep::Put(table, key, value, user_flags, ttl_ms) => {
                let (user_flags, ttl_ms) = (*user_flags, *ttl_ms);
                push_commit_step(body, &CommitStep::Put { table: *table, key, value, user_flags, ttl_ms });
            }
            OwnedStep::Delete(table, key) => push_commit_step(body, &CommitStep::Delete { table: *table, key }),
        }
    }

    fn owned(step: CommitStep<'_>) -> OwnedStep {
        match step {
            CommitStep::Read { table, key, version } => OwnedStep::Read(table, key.to_vec(), version),
            CommitStep::Range { table, from, to, backward, rows } => {
                let rows = rows.map(|row| (row.key.to_vec(), row.version)).collect();
                OwnedStep::Range(table, from.to_vec(), to.to_vec(), backward, rows)
            }
            CommitStep::Count { table, from, to, keys } => OwnedStep::Count(table, from.to_vec(), to.to_vec(), keys),
            CommitStep::Put { table, key, value, user_flags, ttl_ms } => {
                OwnedStep::Put(table, key.to_vec(), value.to_vec(), user_flags, ttl_ms)
            }
            CommitStep::Delete { table, key } => OwnedStep::Delete(table, key.to_vec()),
        }
    }

    proptest! {
        #[test]
        fn steps_come_back_as_they_went(steps in vec(step(), 0..9), cut in any::<prop::sample::Index>()) {
            let mut body = Vec::new();
            steps.iter().for_each(|step| push(&mut body, step));
            let read: Result<Vec<_>, _> = CommitStepIter::new(steps.len() as u64, &body).collect();
            let read: Vec<_> = read.expect("well-formed").into_iter().map(owned).collect();
            prop_assert_eq!(format!("{read:?}"), format!("{steps:?}"));
            if !body.is_empty() {
                let end = cut.index(body.len());
                let cut: Result<Vec<_>, _> = CommitStepIter::new(steps.len() as u64, &body[..end]).collect();
                prop_assert!(cut.is_err());
                let fewer: Result<Vec<_>, _> = CommitStepIter::new(steps.len() as u64 - 1, &body).collect();
                prop_assert!(fewer.is_err());
            }
        }

        #[test]
        fn mutated_steps_never_panic(steps in vec(step(), 1..5), flips in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
            let mut body = Vec::new();
            steps.iter().for_each(|step| push(&mut body, step));
            for (at, byte) in flips {
                let at = at.index(body.len());
                body[at] = byte;
            }
            crate::fuzzing::commit(steps.len() as u64, &body);
        }
    }

    #[test]
    fn what_no_commit_may_have_is_named() {
        let refused = |operation: Operation<'_>| {
            let mut body = Vec::new();
            encode_operation(&operation, &mut body);
            CommitStepIter::new(1, &body).next().expect("a step").expect_err("refused")
        };
        assert_eq!(refused(Operation::increment(1, b"k", 1)), CommitDecodeError::NoStep(0));
        assert_eq!(refused(Operation::commit(0, b"")), CommitDecodeError::NoStep(0));
        assert_eq!(refused(Operation::rank(1, b"k")), CommitDecodeError::NoStep(0), "it is a count from the beginning");
        let long = vec![7; MAX_KEY_LEN + 2];
        let too_large = CommitDecodeError::Body(0, BodyDecodeError::TooLarge(0));
        assert_eq!(refused(Operation::count(1, b"", &long)), too_large);
        let conditional = Operation::put(1, b"k", b"").under(Condition::Absent, 0);
        assert_eq!(refused(conditional), CommitDecodeError::Conditional(0));
        let short = CommitDecodeError::Body(0, BodyDecodeError::Short(0));
        assert_eq!(refused(Operation::put_with_ttl(1, b"k", b"123")), short);
        assert_eq!(refused(Operation::range(1, b"a", &[0; 4], 1, false)), short, "a record is missing");
        let trailing = CommitDecodeError::Body(0, BodyDecodeError::Trailing(1));
        assert_eq!(refused(Operation { value: b"v", ..Operation::get(1, b"k") }), trailing);
        assert_eq!(refused(Operation { value: b"v", ..Operation::delete(1, b"k") }), trailing);
    }

    #[test]
    fn steps_beyond_a_limit_are_refused_at_the_first_of_them() {
        for (most, operation) in [
            (COMMIT_READS, Operation::get(1, b"k")),
            (COMMIT_RANGES, Operation::range(1, b"k", &[0; 4], 0, false)),
            (COMMIT_RANGES, Operation::count(1, b"k", b"")),
            (COMMIT_WRITES, Operation::delete(1, b"k")),
        ] {
            let mut body = Vec::new();
            (0..=most).for_each(|_| encode_operation(&operation, &mut body));
            let steps: Vec<_> = CommitStepIter::new(most as u64 + 1, &body).collect();
            assert_eq!(steps.len(), most + 1);
            assert_eq!(steps.last(), Some(&Err(CommitDecodeError::Steps)));
            assert!(steps[..most].iter().all(Result::is_ok));
        }
        let (mut both, half) = (Vec::new(), COMMIT_RANGES / 2);
        (0..half).for_each(|_| encode_operation(&Operation::range(1, b"k", &[0; 4], 0, false), &mut both));
        (0..=half).for_each(|_| encode_operation(&Operation::count(1, b"k", b""), &mut both));
        let last = CommitStepIter::new(2 * half as u64 + 1, &both).last();
        assert_eq!(last, Some(Err(CommitDecodeError::Steps)), "ranges and counts have one limit");
        let endless: Vec<_> = CommitStepIter::new(u64::MAX, &[]).collect();
        assert_eq!(endless.len(), 1, "a wrong count does not make an endless list");
    }
}
