//! Which queries wait for their answers. What changes nothing is remembered by nobody, and may run again; but while it
//! runs a repeat is known as one: a client's timer is quicker than its query under load, when there is least to spare
//! for another run.

use std::hash::{BuildHasher as _, Hash};

use hashbrown::DefaultHashBuilder;
use sandstorm_net::rpc::MessageHeader;

use crate::limits::QUERY_SLOTS;

/// Stands for a query. A client may ask all its queries under one session and sequence: then R2P2's id tells them
/// apart, as it does their answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryTag(u64);

impl QueryTag {
    /// What is no query.
    pub(super) const NONE: QueryTag = QueryTag(0);

    fn place(self) -> usize {
        (self.0 >> 1) as usize % QUERY_SLOTS
    }
}

/// Marks of queries that wait, each in its place; of two with one place the later is known, and the other may run
/// again.
pub(super) struct PendingQueries {
    marks: Box<[QueryTag]>,
    /// Its keys are random, so that nobody can choose a query whose mark is another's.
    hasher: DefaultHashBuilder,
}

impl PendingQueries {
    pub(super) fn new() -> PendingQueries {
        PendingQueries { marks: vec![QueryTag::NONE; QUERY_SLOTS].into(), hasher: DefaultHashBuilder::default() }
    }

    /// The mark of what this peer has asked under this id and header.
    pub(super) fn mark(&self, peer: &impl Hash, request_id: u16, header: &MessageHeader) -> QueryTag {
        if !header.is_idempotent() {
            return QueryTag::NONE;
        }
        let MessageHeader { tenant, session, sequence, .. } = header;
        QueryTag(self.hasher.hash_one((peer, request_id, tenant, session, sequence)) | 1)
    }

    /// Whether it waits.
    pub(super) fn waits(&self, mark: QueryTag) -> bool {
        mark != QueryTag::NONE && self.marks[mark.place()] == mark
    }

    /// It begins to wait.
    pub(super) fn begin(&mut self, mark: QueryTag) {
        if mark != QueryTag::NONE {
            self.marks[mark.place()] = mark;
        }
    }

    /// It has its answer.
    pub(super) fn end(&mut self, mark: QueryTag) {
        if self.waits(mark) {
            self.marks[mark.place()] = QueryTag::NONE;
        }
    }
}

#[cfg(test)]
mod tests {
    use sandstorm_net::rpc::MESSAGE_FLAG_IDEMPOTENT;

    use super::*;

    #[test]
    fn a_query_is_known_while_it_waits_and_others_are_not() {
        let mut queries = PendingQueries::new();
        let header = MessageHeader {
            flags: MESSAGE_FLAG_IDEMPOTENT,
            operations: 1,
            tenant: 7,
            session: 8,
            sequence: 5,
            acked: 0,
        };
        let mark = queries.mark(&1, 5, &header);
        let others = [
            queries.mark(&2, 5, &header),
            queries.mark(&1, 6, &header),
            queries.mark(&1, 5, &MessageHeader { tenant: 8, ..header }),
            queries.mark(&1, 5, &MessageHeader { session: 9, ..header }),
            queries.mark(&1, 5, &MessageHeader { sequence: 6, ..header }),
            queries.mark(&1, 5, &MessageHeader { flags: 0, ..header }),
        ];
        assert_eq!(others[5], QueryTag::NONE, "what may run once is remembered elsewhere");
        assert_eq!(queries.mark(&1, 5, &MessageHeader { acked: 4, ..header }), mark, "a repeat may acknowledge more");
        for _ in 0..2 {
            assert!(!queries.waits(mark));
            queries.begin(mark);
            assert!(queries.waits(mark) && !others.iter().any(|other| queries.waits(*other)));
            others.iter().for_each(|other| queries.end(*other));
            assert!(queries.waits(mark), "another's end is not its own");
            queries.end(mark);
        }
        assert!(!queries.waits(mark));
    }
}
