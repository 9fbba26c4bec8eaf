//! Queries that are being run. A query changes nothing, so its answer is not remembered and it may run again. But a
//! repeat is recognised while the query runs. Under load a client's timer is shorter than its query, just when the
//! server has no time for another run.

use std::hash::{BuildHasher as _, Hash};

use hashbrown::DefaultHashBuilder;
use sandstorm_net::rpc::MessageHeader;

use crate::limits::QUERY_SLOTS;

/// Identifies a query. A client may send all its queries under one session and sequence; R2P2's request id tells them
/// apart then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryTag(u64);

impl QueryTag {
    /// For messages that are no queries.
    pub(super) const NONE: QueryTag = QueryTag(0);

    fn slot(self) -> usize {
        (self.0 >> 1) as usize % QUERY_SLOTS
    }
}

/// Each slot has the tag of one running query. If two queries have one slot, the later one is recognised, and the other
/// may run again.
pub(super) struct PendingQueries {
    tags: Box<[QueryTag]>,
    /// Its keys are random, so that a client cannot choose a query whose tag is another's.
    hasher: DefaultHashBuilder,
}

impl PendingQueries {
    pub(super) fn new() -> PendingQueries {
        PendingQueries { tags: vec![QueryTag::NONE; QUERY_SLOTS].into(), hasher: DefaultHashBuilder::default() }
    }

    /// The tag of a peer's query with this request id and header.
    pub(super) fn tag(&self, peer: &impl Hash, request_id: u16, header: &MessageHeader) -> QueryTag {
        if !header.is_idempotent() {
            return QueryTag::NONE;
        }
        let MessageHeader { tenant, session, sequence, .. } = header;
        QueryTag(self.hasher.hash_one((peer, request_id, tenant, session, sequence)) | 1)
    }

    /// Whether the query is running.
    pub(super) fn waits(&self, tag: QueryTag) -> bool {
        tag != QueryTag::NONE && self.tags[tag.slot()] == tag
    }

    /// Notes that the query begins.
    pub(super) fn begin(&mut self, tag: QueryTag) {
        if tag != QueryTag::NONE {
            self.tags[tag.slot()] = tag;
        }
    }

    /// Notes that the query has its answer.
    pub(super) fn end(&mut self, tag: QueryTag) {
        if self.waits(tag) {
            self.tags[tag.slot()] = QueryTag::NONE;
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
        let tag = queries.tag(&1, 5, &header);
        let others = [
            queries.tag(&2, 5, &header),
            queries.tag(&1, 6, &header),
            queries.tag(&1, 5, &MessageHeader { tenant: 8, ..header }),
            queries.tag(&1, 5, &MessageHeader { session: 9, ..header }),
            queries.tag(&1, 5, &MessageHeader { sequence: 6, ..header }),
            queries.tag(&1, 5, &MessageHeader { flags: 0, ..header }),
        ];
        assert_eq!(others[5], QueryTag::NONE, "what may run once is remembered elsewhere");
        assert_eq!(queries.tag(&1, 5, &MessageHeader { acked: 4, ..header }), tag, "a repeat may acknowledge more");
        for _ in 0..2 {
            assert!(!queries.waits(tag));
            queries.begin(tag);
            assert!(queries.waits(tag) && !others.iter().any(|other| queries.waits(*other)));
            others.iter().for_each(|other| queries.end(*other));
            assert!(queries.waits(tag), "another's end is not its own");
            queries.end(tag);
        }
        assert!(!queries.waits(tag));
    }
}
