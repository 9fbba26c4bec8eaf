//! The number of requests that a message counts as.

use super::*;

fn summarized(operations: &[Operation<'_>]) -> OperationSummary {
    let count = operations.len() as u16;
    let header = MessageHeader { flags: 0, operations: count, tenant: 1, session: 1, sequence: 1, acked: 0 };
    let mut message = Vec::new();
    start_response(&header, count, &mut message);
    operations.iter().for_each(|operation| encode_operation(operation, &mut message));
    parse(&message).expect("well-formed operations").3
}

#[test]
fn a_range_counts_as_the_records_that_it_may_answer_and_as_one_at_the_least() {
    let range = |limit| Operation::range(1, b"from", b"to", limit, false);
    let (get, multiget) = (Operation::get(1, b"k"), Operation::multiget(1, 3, b"no keys"));
    let positions = crate::limits::POSITION_REQUESTS;
    for (operations, keys, requests) in [
        (&[range(1)][..], 1, 1),
        (&[Operation::range(1, b"", b"", 7, true)], 7, 7),
        (&[range(1_000)], 1_000, 1_000),
        // No answer has more. A limit of 0 is an error, which counts as a request as well.
        (&[range(10_000)], 1_000, 1_000),
        (&[Operation { number: u64::MAX, ..range(1) }], 1_000, 1_000),
        (&[range(0)], 0, 1),
        (&[range(1); 256], 256, 256),
        (&[get, range(5), multiget, get], 8, 10),
        (&[range(600), range(600)], 1_200, 1_200),
        (&[Operation::count(1, b"a", b"b"), get, Operation::nth(1, 7), range(5)], 5, 2 * positions + 6),
        (&[Operation::rank(1, b"k"); 256], 0, 256 * positions),
        (&[Operation::ttl(1, b"k"), get], 0, 2),
    ] {
        let summary = summarized(operations);
        let counted = (summary.keys, summary.requests(operations.len() as u16));
        assert_eq!(counted, (keys, requests), "{operations:?}");
        assert!(summary.repeatable && !summary.only_pings && !summary.invokes && !summary.hello);
    }
    for write in [Operation::put(1, b"k", b"v"), Operation::touch(1, b"k", 7)] {
        assert!(!summarized(&[range(1), write]).repeatable);
    }
}
