//! Responses that wait for invocations. A message with invocations has a slot here until the last of them has ended.
//!
//! The parts of a response become ready in any order, perhaps on other workers; the response has them in the order of
//! the request. Buffers are reused, so the steady state allocates nothing.

use hashbrown::HashMap;
use sandstorm_net::rpc::{MESSAGE_HEADER_LEN, MessageHeader, OpKind, Operation, RpcStatus};

use super::generational_slab::{GenerationalSlab, SlotId};
use super::latency_ledger::ReadyCall;
use super::operation_response::{RESPONSE_FULL_TEXT, encode_refusal, has_room};
use super::pending_queries::{PendingQueries, QueryTag};
use crate::limits::{ANSWER_RESERVE_BYTES, POOLED_RESPONSE_BYTES, WAITING_BYTES_PER_TENANT};

/// Identifies a request, and the destination of its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestOrigin<P> {
    /// The sender.
    pub(crate) peer: P,
    /// R2P2's request id.
    pub(crate) request_id: u16,
    /// The request's header.
    pub(crate) header: MessageHeader,
    /// Whether the answer is remembered until the client acknowledges it.
    pub(crate) remembered: bool,
    /// The tag of the request if it is a query.
    pub(super) query: QueryTag,
    /// When its last packet was received, in the workers' nanoseconds.
    pub(super) received_ns: u64,
}

/// Identifies a waiting response.
pub(crate) type ResponseId = SlotId<ResponseKind>;

/// The kind of a [`ResponseId`].
pub(crate) enum ResponseKind {}

struct PendingResponse<P> {
    origin: Option<RequestOrigin<P>>,
    /// Encoded operations, in the order in which they became ready.
    bytes: Vec<u8>,
    /// For each operation of the request: the range of its answer in `bytes`. Empty for a request of one, whose
    /// response is written at once.
    parts: Vec<Option<(usize, usize)>>,
    missing: usize,
    /// How far the log has to be on the disk before it may leave.
    shown: u64,
    /// Bytes of `bytes` that its tenant is charged for while it waits.
    charged: usize,
    /// Its calls that are counted when it leaves.
    calls: Vec<ReadyCall>,
}

impl<P> Default for PendingResponse<P> {
    fn default() -> PendingResponse<P> {
        PendingResponse {
            origin: None,
            bytes: Vec::new(),
            parts: Vec::new(),
            missing: 0,
            shown: 0,
            charged: 0,
            calls: Vec::new(),
        }
    }
}

/// The waiting responses of one port.
pub(crate) struct ResponseAssembler<P> {
    slots: GenerationalSlab<PendingResponse<P>, ResponseKind>,
    /// Bytes of each tenant's responses that wait for a last invocation.
    waiting_bytes: HashMap<u32, usize>,
    /// The queries among the requests that wait.
    pub(super) queries: PendingQueries,
}

/// Starts a response: the request's header, marked as a response, with room for nothing else yet.
pub(crate) fn start_response(header: &MessageHeader, operations: u16, response: &mut Vec<u8>) {
    response.clear();
    response.extend_from_slice(&header.response(operations).encode());
}

impl<P: Copy> ResponseAssembler<P> {
    pub(crate) fn new() -> ResponseAssembler<P> {
        ResponseAssembler {
            slots: GenerationalSlab::default(),
            waiting_bytes: HashMap::new(),
            queries: PendingQueries::new(),
        }
    }

    /// Opens a response for a request of `operations` operations.
    pub(crate) fn open(&mut self, origin: RequestOrigin<P>, operations: usize) -> ResponseId {
        self.queries.begin(origin.query);
        let (id, waiting) = self.slots.open();
        waiting.origin = Some(origin);
        waiting.missing = operations;
        waiting.shown = 0;
        if operations != 1 {
            waiting.parts.resize(operations, None);
        }
        id
    }

    /// Closes a response of one operation. Returns its origin; the caller writes the response itself. `None` for a
    /// response of several, or one that does not wait (any more).
    #[inline]
    pub(crate) fn take_single(&mut self, id: ResponseId) -> Option<RequestOrigin<P>> {
        let waiting = self.slots.get_mut(id)?;
        if !waiting.parts.is_empty() {
            return None;
        }
        // The origin is not taken out, which saves a copy: with the next generation it cannot be reached.
        let origin = waiting.origin?;
        self.slots.close(id);
        self.queries.end(origin.query);
        Some(origin)
    }

    /// Takes one operation's encoded answer, which shows the log up to a position. If no other is missing, writes the
    /// whole response and returns its origin and the highest of these positions. An answer that is not awaited (any
    /// more) is dropped. `calls` has the operation, if it is a call that is counted when its reply leaves; for a whole
    /// response, afterwards, all of its calls.
    pub(crate) fn part(
        &mut self,
        id: ResponseId,
        (index, shown): (usize, u64),
        (answer, calls): (&[u8], &mut Vec<ReadyCall>),
        response: &mut Vec<u8>,
    ) -> Option<(RequestOrigin<P>, u64)> {
        let waiting = self.slots.get_mut(id)?;
        let part = waiting.parts.get_mut(index).filter(|part| part.is_none())?;
        let start = waiting.bytes.len();
        // An answer of a header alone always has room: a write that was done must not be answered `TooLarge`.
        let tenant = waiting.origin.as_ref().map_or(0, |origin| origin.header.tenant);
        let waiting_bytes = if waiting.missing > 1 { self.waiting_bytes.get(&tenant).copied().unwrap_or(0) } else { 0 };
        let fits = has_room(&waiting.bytes, answer.len()) && waiting_bytes + answer.len() <= WAITING_BYTES_PER_TENANT;
        if answer.len() <= ANSWER_RESERVE_BYTES || fits {
            waiting.bytes.extend_from_slice(answer);
        } else {
            let op = answer.first().and_then(|op| OpKind::from_byte(*op)).unwrap_or(OpKind::Ping);
            encode_refusal(&Operation::new(op), RpcStatus::TooLarge, RESPONSE_FULL_TEXT, &mut waiting.bytes);
        }
        *part = Some((start, waiting.bytes.len()));
        waiting.shown = sandstorm_store::backed::waits::later_of(waiting.shown, shown);
        waiting.missing -= 1;
        if waiting.missing > 0 {
            *self.waiting_bytes.entry(tenant).or_default() += waiting.bytes.len() - waiting.charged;
            waiting.charged = waiting.bytes.len();
            // How long a reply is sent is measured for the last one alone.
            waiting.calls.extend(calls.drain(..).filter(|call| call.ended.is_some()));
            return None;
        }
        if !waiting.calls.is_empty() {
            waiting.calls.append(calls);
            *calls = std::mem::take(&mut waiting.calls);
        }
        let origin = waiting.origin.take()?;
        let shown = waiting.shown;
        let charged = std::mem::take(&mut waiting.charged);
        start_response(&origin.header, waiting.parts.len() as u16, response);
        response.reserve(waiting.bytes.len());
        for (start, end) in waiting.parts.iter().flatten() {
            response.extend_from_slice(&waiting.bytes[*start..*end]);
        }
        debug_assert_eq!(response.len(), MESSAGE_HEADER_LEN + waiting.bytes.len());
        waiting.bytes.clear();
        waiting.bytes.shrink_to(POOLED_RESPONSE_BYTES);
        waiting.parts.clear();
        self.slots.close(id);
        if charged > 0
            && let Some(waiting_bytes) = self.waiting_bytes.get_mut(&tenant)
        {
            *waiting_bytes -= charged;
            if *waiting_bytes == 0 {
                self.waiting_bytes.remove(&tenant);
            }
        }
        self.queries.end(origin.query);
        Some((origin, shown))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sandstorm_net::rpc::{MESSAGE_FLAG_RESPONSE, encode_operation};

    use super::*;

    fn origin(sequence: u64) -> RequestOrigin<u8> {
        let header = MessageHeader { flags: 0, operations: 0, tenant: 7, session: 8, sequence, acked: 0 };
        RequestOrigin {
            peer: 1,
            request_id: sequence as u16,
            header,
            remembered: true,
            query: QueryTag::NONE,
            received_ns: 0,
        }
    }

    fn encoded(operation: &Operation<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_operation(operation, &mut bytes);
        bytes
    }

    #[test]
    fn a_late_part_does_not_reach_the_next_response_in_its_slot() {
        let (mut assembly, mut response) = (ResponseAssembler::new(), Vec::new());
        let answer = encoded(&Operation::new(OpKind::Invoke));
        let first = assembly.open(origin(1), 1);
        assert_eq!(assembly.take_single(first).map(|o| o.header.sequence), Some(1));
        let second = assembly.open(origin(2), 2);
        assert!(
            assembly.take_single(first).is_none()
                && assembly.part(first, (0, 0), (&answer, &mut Vec::new()), &mut response).is_none()
        );
        assert!(assembly.take_single(second).is_none(), "it waits for two");
        assert!(assembly.part(second, (0, 0), (&answer, &mut Vec::new()), &mut response).is_none());
        assert_eq!(
            assembly.part(second, (1, 0), (&answer, &mut Vec::new()), &mut response).map(|(o, _)| o.header.sequence),
            Some(2)
        );
        let third = assembly.open(origin(3), 1);
        assert!(
            assembly.part(second, (0, 0), (&answer, &mut Vec::new()), &mut response).is_none()
                && assembly.take_single(first).is_none()
        );
        assert_eq!(assembly.take_single(third).map(|o| o.header.sequence), Some(3));
        assert!(assembly.take_single(third).is_none());
        assert_eq!(assembly.slots.live(), 0);
    }

    #[test]
    fn responses_that_wait_hold_a_bounded_number_of_bytes_of_each_tenant() {
        let (mut assembly, mut response) = (ResponseAssembler::new(), Vec::new());
        let large = encoded(&Operation { value: &vec![1; 1 << 20], ..Operation::new(OpKind::Get) });
        let small = encoded(&Operation::new(OpKind::Invoke));
        let tickets: Vec<ResponseId> = (0..200).map(|sequence| assembly.open(origin(sequence), 2)).collect();
        for id in &tickets {
            assert!(assembly.part(*id, (0, 0), (&large, &mut Vec::new()), &mut response).is_none());
        }
        assert!(assembly.waiting_bytes[&7] <= WAITING_BYTES_PER_TENANT + 200 * 2 * ANSWER_RESERVE_BYTES);
        let other = MessageHeader { tenant: 8, ..origin(1).header };
        let others = assembly.open(RequestOrigin { header: other, ..origin(1) }, 2);
        assert!(assembly.part(others, (0, 0), (&large, &mut Vec::new()), &mut response).is_none());
        assert_eq!(assembly.waiting_bytes[&8], large.len(), "another tenant has room of its own");
        let mut cut = 0;
        for id in tickets.into_iter().chain([others]) {
            assert!(assembly.part(id, (1, 0), (&small, &mut Vec::new()), &mut response).is_some());
            cut += usize::from(response.len() < large.len());
        }
        assert!(cut > 100 && cut < 150, "{cut} of 200 answers were too much to wait with");
        assert!(assembly.waiting_bytes.is_empty());
    }

    proptest! {
        /// Whatever the order in which parts become ready, the response has them in the order of the request.
        #[test]
        fn parts_come_out_in_order(order in (2usize..20).prop_flat_map(|n| Just((0..n).collect::<Vec<_>>()).prop_shuffle())) {
            let (mut assembly, mut response) = (ResponseAssembler::new(), Vec::new());
            let id = assembly.open(origin(9), order.len());
            for (done, index) in order.iter().enumerate() {
                let value = [*index as u8; 3];
                let answer = encoded(&Operation { value: &value, number: *index as u64, ..Operation::new(OpKind::Invoke) });
                let finished = assembly.part(id, (*index, 0), (&answer, &mut Vec::new()), &mut response);
                prop_assert_eq!(finished.is_some(), done + 1 == order.len());
            }
            let (header, operations) = MessageHeader::decode(&response).expect("a well-formed response");
            prop_assert_eq!((header.flags, header.sequence), (MESSAGE_FLAG_RESPONSE, 9));
            let numbers: Vec<u64> = operations.map(|o| o.map(|o| { assert_eq!(o.status, RpcStatus::Ok); o.number })).collect::<Result<_, _>>().expect("well-formed operations");
            prop_assert_eq!(numbers, (0..order.len() as u64).collect::<Vec<_>>());
        }
    }
}
