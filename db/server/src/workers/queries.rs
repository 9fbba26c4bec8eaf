//! Which queries wait for their answers. What changes nothing is remembered by nobody, and may run again; but while it runs a repeat is known as one: a
//! client's timer is quicker than its query under load, when there is least to spare for another run.

use std::hash::{BuildHasher as _, Hash};

use hashbrown::DefaultHashBuilder;
use sandstorm_net::rpc::MessageHeader;

use crate::limits::QUERY_PLACES;

/// Stands for a query. A client may ask all its queries under one session and sequence: then R2P2's id tells them apart, as it does their answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u64);

impl Mark {
    /// What is no query.
    pub(super) const NONE: Mark = Mark(0);

    fn place(self) -> usize {
        (self.0 >> 1) as usize % QUERY_PLACES
    }
}

/// Marks of queries that wait, each in its place; of two with one place the later is known, and the other may run again.
pub(super) struct Queries {
    marks: Box<[Mark]>,
    /// Its keys are random, so that nobody can choose a query whose mark is another's.
    hasher: DefaultHashBuilder,
}

impl Queries {
    pub(super) fn new() -> Queries {
        Queries { marks: vec![Mark::NONE; QUERY_PLACES].into(), hasher: DefaultHashBuilder::default() }
    }

    /// The mark of what this peer has asked under this id and header.
    pub(super) fn mark(&self, peer: &impl Hash, request_id: u16, header: &MessageHeader) -> Mark {
        if !header.is_idempotent() {
            return Mark::NONE;
        }
        let MessageHeader { tenant, session, sequence, .. } = header;
        Mark(self.hasher.hash_one((peer, request_id, tenant, session, sequence)) | 1)
    }

    /// Whether it waits.
    pub(super) fn waits(&self, mark: Mark) -> bool {
        mark != Mark::NONE && self.marks[mark.place()] == mark
    }

    /// It begins to wait.
    pub(super) fn begin(&mut self, mark: Mark) {
        if mark != Mark::NONE {
            self.marks[mark.place()] = mark;
        }
    }

    /// It has its answer.
    pub(super) fn end(&mut self, mark: Mark) {
        if self.waits(mark) {
            self.marks[mark.place()] = Mark::NONE;
        }
    }
}

#[cfg(test)]
mod tests {
    use sandstorm_net::rpc::FLAG_IDEMPOTENT;

    use super::*;

    #[test]
    fn a_query_is_known_while_it_waits_and_others_are_not() {
        let mut queries = Queries::new();
        let header =
            MessageHeader { flags: FLAG_IDEMPOTENT, operations: 1, tenant: 7, session: 8, sequence: 5, acked: 0 };
        let mark = queries.mark(&1, 5, &header);
        let others = [
            queries.mark(&2, 5, &header),
            queries.mark(&1, 6, &header),
            queries.mark(&1, 5, &MessageHeader { tenant: 8, ..header }),
            queries.mark(&1, 5, &MessageHeader { session: 9, ..header }),
            queries.mark(&1, 5, &MessageHeader { sequence: 6, ..header }),
            queries.mark(&1, 5, &MessageHeader { flags: 0, ..header }),
        ];
        assert_eq!(others[5], Mark::NONE, "what may run once is remembered elsewhere");
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
