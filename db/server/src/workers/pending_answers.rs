//! Answers that wait for the log's disk, because a crash could still undo what they show. The worker goes on meanwhile.
//! Each leaves, in their order, once the log is on the disk up to its position.

use std::collections::VecDeque;

use hashbrown::HashMap;
use sandstorm_accounts::{RequestSubject, RequestWaits};
use sandstorm_log::waits_for_copies;
use sandstorm_metrics::histogram::RequestClass;
use sandstorm_net::dynamic_threshold::DynamicThreshold;
use sandstorm_net::r2p2::PeerAddr;
use sandstorm_net::rpc::{MessageHeader, OpKind, Operation, RpcStatus};
use sandstorm_net::shared_bytes::SharedBytes;
use sandstorm_store::backed::waits;

use super::latency_ledger::{AnswerLatency, ReadyCall, subject_of};
use super::operation_response::encode_refusal;
use super::response_assembly::{RequestOrigin, start_response};
use crate::limits::{PENDING_ANSWERS_BYTES, POOLED_PENDING_ANSWERS, POOLED_RESPONSE_BYTES};

/// The text of an answer that has waited in vain.
pub(super) const NOT_DURABLE_TEXT: &str = "it was done, but its disk, or what is behind its table, has failed, takes too long or has changed: it may not stand; read before you write again";

/// An answer that waits.
pub(super) struct PendingAnswer {
    pub(super) position: u64,
    pub(super) origin: RequestOrigin<PeerAddr>,
    pub(super) bytes: Vec<u8>,
    /// The value behind them, if it is sent from its record.
    pub(super) tail: Option<SharedBytes>,
    /// As what its latency is counted.
    pub(super) class: Option<RequestClass>,
    /// What it is about, and what it has waited for before, for the case that it is slow.
    pub(super) subject: RequestSubject,
    pub(super) waits: RequestWaits,
    /// Since when it waits, in the workers' nanoseconds.
    pub(super) since_ns: u64,
    /// The calls that it has replies of, if they are counted when it leaves.
    pub(super) calls: Vec<ReadyCall>,
}

impl PendingAnswer {
    fn size(&self) -> usize {
        let calls = self.calls.iter().map(ReadyCall::size).sum::<usize>();
        size_of::<PendingAnswer>() + calls + self.bytes.capacity() + self.tail.as_deref().map_or(0, <[u8]>::len)
    }
}

/// The answers of a port that wait.
#[derive(Default)]
pub(super) struct PendingAnswers {
    /// Answers that wait for the log's disk, and answers that wait for its copies, too. In each queue, positions never
    /// decrease.
    queues: [VecDeque<PendingAnswer>; 2],
    /// Answers that wait for the backing of a table. They end in any order.
    backed: Vec<PendingAnswer>,
    bytes: usize,
    by_tenant: HashMap<u32, usize>,
    /// Buffers for further ones.
    pool: Vec<Vec<u8>>,
}

impl PendingAnswers {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty) && self.backed.is_empty()
    }

    /// The positions that the first one of each queue waits for.
    pub(super) fn first_positions(&self) -> [Option<u64>; 2] {
        self.queues.each_ref().map(|queue| queue.front().map(|answer| answer.position))
    }

    /// Keeps an answer from `since_ns` of the workers' clock on, with the calls that it replies to; returns false if
    /// there is no room for its tenant's.
    pub(super) fn push(
        &mut self,
        position: u64,
        origin: &RequestOrigin<PeerAddr>,
        response: &[u8],
        tail: Option<SharedBytes>,
        latency: AnswerLatency<'_>,
        (calls, since_ns): (&mut Vec<ReadyCall>, u64),
    ) -> bool {
        let own = self.by_tenant.get(&origin.header.tenant).copied().unwrap_or(0);
        if !DynamicThreshold::of(PENDING_ANSWERS_BYTES).admits(self.bytes, own) {
            return false;
        }
        let mut bytes = self.pool.pop().unwrap_or_default();
        bytes.extend_from_slice(response);
        let is_wait = waits::is_wait(position);
        let queue = &mut self.queues[usize::from(waits_for_copies(position))];
        let position = if is_wait { position } else { position.max(queue.back().map_or(0, |last| last.position)) };
        let AnswerLatency { class, first, waits } = latency;
        let answer = PendingAnswer {
            position,
            origin: *origin,
            bytes,
            tail,
            class,
            subject: first.map_or(RequestSubject::of(""), subject_of),
            waits: waits.copied().unwrap_or_default(),
            since_ns,
            calls: std::mem::take(calls),
        };
        self.bytes += answer.size();
        *self.by_tenant.entry(origin.header.tenant).or_default() += answer.size();
        if is_wait {
            self.backed.push(answer);
        } else {
            queue.push_back(answer);
        }
        true
    }

    /// Takes the first one of a queue.
    pub(super) fn pop(&mut self, queue: usize) -> Option<PendingAnswer> {
        let answer = self.queues.get_mut(queue)?.pop_front()?;
        self.discharge(&answer);
        Some(answer)
    }

    /// Whether one of those that wait for a backing need not any more.
    pub(super) fn has_backed(&self, is_over: impl Fn(u64) -> bool) -> bool {
        self.backed.iter().any(|answer| is_over(answer.position))
    }

    /// Takes those that wait for a backing and need not any more.
    pub(super) fn take_backed(&mut self, is_over: impl Fn(u64) -> bool) -> Vec<PendingAnswer> {
        if !self.has_backed(&is_over) {
            return Vec::new();
        }
        let ready: Vec<_> = self.backed.extract_if(.., |answer| is_over(answer.position)).collect();
        ready.iter().for_each(|answer| self.discharge(answer));
        ready
    }

    fn discharge(&mut self, answer: &PendingAnswer) {
        self.bytes -= answer.size();
        let tenant = answer.origin.header.tenant;
        if let Some(own) = self.by_tenant.get_mut(&tenant) {
            *own -= answer.size();
            if *own == 0 {
                self.by_tenant.remove(&tenant);
            }
        }
    }

    /// Takes the buffer of an answer that has left.
    pub(super) fn recycle(&mut self, mut bytes: Vec<u8>) {
        if self.pool.len() < POOLED_PENDING_ANSWERS && bytes.capacity() <= POOLED_RESPONSE_BYTES {
            bytes.clear();
            self.pool.push(bytes);
        }
    }
}

/// The answer in place of one that has waited in vain: each of its operations is `NotDurable`.
pub(super) fn not_durable_response(header: &MessageHeader, response: &[u8]) -> Vec<u8> {
    let (mut instead, mut operations) = (Vec::new(), 0);
    let kinds: Vec<OpKind> = MessageHeader::decode(response).map_or_else(
        |_| Vec::new(),
        |(answered, all)| {
            operations = answered.operations;
            all.map_while(Result::ok).map(|operation| operation.op).collect()
        },
    );
    start_response(header, operations, &mut instead);
    for index in 0..usize::from(operations) {
        // The last one may be without its value, which is a get's.
        let op = kinds.get(index).copied().unwrap_or(OpKind::Get);
        let text = if index == 0 { NOT_DURABLE_TEXT } else { "" };
        encode_refusal(&Operation::new(op), RpcStatus::NotDurable, text, &mut instead);
    }
    instead
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sandstorm_accounts::SlowCall;
    use sandstorm_extension::{BudgetOverride, ExtensionLibrary, LoadedExtension};
    use sandstorm_log::COPIED_BIT;
    use sandstorm_net::rpc::encode_operation;

    use super::super::ended_call::EndedCall;
    use super::super::pending_queries::QueryTag;
    use super::*;

    fn origin(tenant: u32) -> RequestOrigin<PeerAddr> {
        let header = MessageHeader { flags: 0, operations: 2, tenant, session: 1, sequence: 1, acked: 0 };
        let peer = ([127, 0, 0, 1], 1).into();
        RequestOrigin { peer, request_id: 1, header, remembered: true, query: QueryTag::NONE, received_ns: 0 }
    }

    #[test]
    fn answers_leave_in_their_order_and_never_before_an_earlier_one() {
        let mut pending = PendingAnswers::default();
        for (position, tenant) in [(5, 1), (3, 2), (9, 1)] {
            assert!(pending.push(
                position,
                &origin(tenant),
                b"answer",
                None,
                AnswerLatency::default(),
                (&mut Vec::new(), 0)
            ));
        }
        for (position, tenant) in [(4, 1), (2, 2)] {
            assert!(pending.push(
                position | COPIED_BIT,
                &origin(tenant),
                b"answer",
                None,
                AnswerLatency::default(),
                (&mut Vec::new(), 0)
            ));
        }
        assert_eq!(pending.first_positions(), [Some(5), Some(4 | COPIED_BIT)], "those of the disk wait for no copies");
        let mut positions =
            |queue| std::iter::from_fn(|| pending.pop(queue)).map(|answer| answer.position).collect::<Vec<u64>>();
        assert_eq!(positions(0), [5, 5, 9]);
        assert_eq!(positions(1), [4 | COPIED_BIT; 2]);
        assert!(pending.by_tenant.is_empty() && pending.bytes == 0);
    }

    #[test]
    fn one_tenant_does_not_take_the_room_of_all() {
        let mut pending = PendingAnswers::default();
        let large = vec![0; 1 << 20];
        let mut count = 0;
        while pending.push(1, &origin(1), &large, None, AnswerLatency::default(), (&mut Vec::new(), 0)) {
            count += 1;
        }
        assert!(count > 10 && count * large.len() < PENDING_ANSWERS_BYTES, "{count}");
        assert!(
            pending.push(1, &origin(2), &large, None, AnswerLatency::default(), (&mut Vec::new(), 0)),
            "another tenant has room of its own"
        );
    }

    #[test]
    fn calls_that_wait_are_charged_with_all_that_they_keep() {
        let mut pending = PendingAnswers::default();
        let extension =
            Arc::new(LoadedExtension::new("e", 1, ExtensionLibrary::of_nothing(), BudgetOverride::default()));
        let call = |kept: usize| ReadyCall {
            tenant: 1,
            extension: Arc::clone(&extension),
            ready_ns: 0,
            is_sampled: false,
            ended: Some(Box::new(EndedCall {
                tenant: 1,
                extension: Arc::clone(&extension),
                received_ns: 0,
                ended_ns: 0,
                cpu_ns: 0,
                waits: RequestWaits::default(),
                did: SlowCall { extension: "e".to_owned(), arguments: vec![0; kept], ..SlowCall::default() },
            })),
        };
        let mut charged = |calls: &mut Vec<ReadyCall>| {
            assert!(pending.push(1, &origin(1), b"", None, AnswerLatency::default(), (calls, 0)));
            let bytes = pending.bytes;
            assert!(pending.pop(0).is_some_and(|answer| answer.size() == bytes));
            assert!(pending.by_tenant.is_empty() && pending.bytes == 0);
            bytes
        };
        let none = charged(&mut Vec::new());
        let each = size_of::<ReadyCall>() + size_of::<EndedCall>() + "e".len();
        assert_eq!(charged(&mut vec![call(0)]) - none, each);
        assert_eq!(charged(&mut vec![call(1_000), call(24)]) - none, 2 * each + 1_024);
    }

    #[test]
    fn each_operation_of_an_answer_that_waited_in_vain_says_so() {
        let mut response = Vec::new();
        let of = origin(1);
        start_response(&of.header, 3, &mut response);
        for op in [OpKind::Put, OpKind::Increment] {
            encode_operation(&Operation { value: b"old", ..Operation::new(op) }, &mut response);
        }
        // The header of a get whose value lies elsewhere.
        let get = Operation { value: &[7; 5000], ..Operation::new(OpKind::Get) };
        let before = response.len();
        encode_operation(&get, &mut response);
        response.truncate(before + sandstorm_net::rpc::OP_HEADER_LEN);
        let instead = not_durable_response(&of.header, &response);
        let (header, operations) = MessageHeader::decode(&instead).expect("a message");
        let said: Vec<_> = operations.map(|operation| operation.expect("whole")).collect();
        assert_eq!(header.sequence, of.header.sequence);
        let kinds: Vec<_> = said.iter().map(|operation| (operation.op, operation.status)).collect();
        assert_eq!(kinds, [OpKind::Put, OpKind::Increment, OpKind::Get].map(|op| (op, RpcStatus::NotDurable)));
        assert_eq!(said[0].value, NOT_DURABLE_TEXT.as_bytes());
    }
}
