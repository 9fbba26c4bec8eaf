//! Pieces of messages. What is run of messages in one go is a piece: about a slice's worth of work, and the operation
//! with which it is over. A message that has more operations, or one that stands behind it, is suspended: its bytes are
//! kept, and the answers that it has so far. It goes on in a further turn of its tenant's
//! ([`super::ingress`]), so that other tenants have theirs in between.
//!
//! One operation is never cut. It reads or writes one largest value, or a thousand keys and as many bytes.

use std::cell::Cell;
use std::mem;
use std::sync::Arc;

use arrayvec::ArrayVec;
use sandstorm_net::r2p2::PeerAddr;
use sandstorm_net::rpc::{MessageHeader, OpKind, Operation, OperationIter, RpcStatus};

use super::Worker;
use super::admission::AdmittedRequest;
use super::ingress::{BatchCosts, IngressScheduler};
use super::port::{PortContext, ResponseBuffer, shrink_to_pool};
use super::record_operations::{self, RangeWork};
use super::response_assembly::{RequestOrigin, ResponseId, start_response};
use super::serve::copy_cost_gets;
use crate::limits::{BURST, COPY_BYTES_PER_GET};
use sandstorm_catalog::{DirectorySnapshot, TenantView};
use sandstorm_dialects::limits::MULTIGET_KEYS;
use sandstorm_dialects::limits::protocols::{CONTENDED_PIECE_WORK, PIECE_WORK};

/// What a message is told for which there was no room while it waited.
const NO_ROOM_TEXT: &str =
    "too many bytes of requests wait for their turn; this was not run: ask again, with less under way at a time";
/// What a message is told whose tenant was deleted while it waited.
const TENANT_GONE_TEXT: &str = "the tenant was deleted while the message waited for its turn; this was not run";

/// How much is run in one go, and how much of that has been: bytes that are moved, in which a plain request counts as
/// so many as take as long.
pub(super) struct PieceBudget {
    limit: u64,
    spent: u64,
}

impl PieceBudget {
    /// A piece; a shorter one where another tenant has asked for something lately.
    pub(super) fn new(is_contended: bool) -> PieceBudget {
        let requests = if is_contended { CONTENDED_PIECE_WORK } else { PIECE_WORK };
        PieceBudget { limit: u64::from(requests) * COPY_BYTES_PER_GET as u64, spent: 0 }
    }

    /// Counts what was done.
    #[inline]
    pub(super) fn spend(&mut self, requests: u32, bytes: usize) {
        self.spent += u64::from(requests) * COPY_BYTES_PER_GET as u64 + bytes as u64;
    }

    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.spent >= self.limit
    }

    /// What was done, in plain requests.
    pub(super) fn requests(&self) -> u64 {
        self.spent / COPY_BYTES_PER_GET as u64
    }
}

/// How many requests an operation counts as.
#[inline]
pub(super) fn operation_requests(operation: &Operation<'_>) -> u32 {
    match operation.op {
        OpKind::MultiGet => operation.number.clamp(1, MULTIGET_KEYS) as u32,
        OpKind::Range => u64::from(operation.number as u32).clamp(1, MULTIGET_KEYS) as u32,
        OpKind::Ping
        | OpKind::Hello
        | OpKind::Get
        | OpKind::Put
        | OpKind::Delete
        | OpKind::Increment
        | OpKind::Invoke => 1,
    }
}

/// What was done of a message in this piece.
#[derive(Default)]
pub(super) struct MessageWork {
    requests: Cell<u32>,
    bytes: Cell<usize>,
}

impl MessageWork {
    #[inline]
    pub(super) fn note(&self, requests: u32, bytes: usize) {
        self.requests.set(self.requests.get().saturating_add(requests));
        self.bytes.set(self.bytes.get().saturating_add(bytes));
    }

    pub(super) fn requests(&self) -> u32 {
        self.requests.get()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.get()
    }
}

/// Where a piece was over: the message by its number in the burst, and the first of its operations that was not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PieceEnd {
    pub(super) number: usize,
    pub(super) part: usize,
}

/// A message that is not at its end, without its bytes.
pub(super) struct SuspendedMessage {
    /// Which of the burst's messages it was.
    pub(super) number: usize,
    origin: RequestOrigin<PeerAddr>,
    ticket: Option<ResponseId>,
    view: Arc<TenantView>,
    ranges: RangeWork,
    /// The first of its operations that was not run.
    part: usize,
    /// The answers to those before; empty if there are none.
    response: Vec<u8>,
}

/// A message that waits for a further turn of its tenant's.
pub(super) struct PostponedMessage {
    message: Vec<u8>,
    suspended: SuspendedMessage,
}

impl PostponedMessage {
    pub(super) fn new(message: Vec<u8>, suspended: SuspendedMessage) -> PostponedMessage {
        PostponedMessage { message, suspended }
    }

    /// A message of a tenant's that was not begun.
    #[cfg(test)]
    pub(super) fn unbegun(view: &Arc<TenantView>, message: Vec<u8>) -> PostponedMessage {
        let (header, _) = MessageHeader::decode(&message).expect("a message");
        let query = super::pending_queries::QueryTag::NONE;
        let peer = ([127, 0, 0, 1], 1).into();
        let origin = RequestOrigin { peer, request_id: 1, header, remembered: false, query };
        let (view, ranges) = (Arc::clone(view), RangeWork::new());
        let suspended =
            SuspendedMessage { number: 0, origin, ticket: None, view, ranges, part: 0, response: Vec::new() };
        PostponedMessage { message, suspended }
    }

    /// Whose it is.
    pub(super) fn tenant(&self) -> u32 {
        self.suspended.origin.header.tenant
    }

    pub(super) fn weight(&self) -> u32 {
        self.suspended.view.tenant.quotas.weight
    }

    /// Bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        self.message.capacity() + self.suspended.response.capacity() + size_of::<PostponedMessage>()
    }

    /// The operations that were not run.
    fn rest(&self) -> Option<(Operation<'_>, OperationIter<'_>)> {
        // It was well-formed when it was admitted.
        let (_, mut operations) = MessageHeader::decode(&self.message).ok()?;
        let first = operations.nth(self.suspended.part)?.ok()?;
        Some((first, operations))
    }

    /// The message as it goes on, as that number of a burst.
    fn resume<'p>(&'p mut self, number: usize, response: &mut Vec<u8>) -> Option<AdmittedRequest<'p>> {
        let SuspendedMessage { origin, ticket, part, .. } = self.suspended;
        let ranges = mem::take(&mut self.suspended.ranges);
        let saved = mem::take(&mut self.suspended.response);
        if saved.is_empty() {
            start_response(&origin.header, origin.header.operations, response);
        } else {
            *response = saved;
        }
        let (first, others) = self.rest()?;
        Some(AdmittedRequest {
            number,
            share: 0,
            ticket,
            origin,
            view: &self.suspended.view,
            first,
            others,
            from: part,
            requests: 0,
            ranges,
            work: MessageWork::default(),
            packet: None,
            has_stored_value: Cell::new(false),
        })
    }
}

/// What becomes of messages of which a piece was run: those before the end are done, the others suspended.
pub(super) fn suspend(
    admitted: ArrayVec<AdmittedRequest<'_>, BURST>,
    end: Option<PieceEnd>,
    responses: &mut [ResponseBuffer],
) -> Vec<SuspendedMessage> {
    let Some(end) = end else { return Vec::new() };
    let unfinished = admitted.into_iter().skip_while(|message| message.number != end.number);
    let suspended = unfinished.map(|message| {
        let AdmittedRequest { number, origin, ticket, view, ranges, from, .. } = message;
        let part = if number == end.number { end.part } else { from };
        let has_answers = part > 0 && ticket.is_none();
        let response = responses.get_mut(number).filter(|_| has_answers);
        let response = response.map(|response| mem::take(&mut response.bytes)).unwrap_or_default();
        SuspendedMessage { number, origin, ticket, view: Arc::clone(view), ranges, part, response }
    });
    suspended.collect()
}

impl Worker {
    /// Goes on with messages of a tenant whose turn it is. Gives those back that are not at their end.
    pub(super) fn resume_messages(
        &mut self,
        snapshot: &DirectorySnapshot,
        waited: Vec<PostponedMessage>,
        (piece, bills): (&mut PieceBudget, &mut BatchCosts),
        port: usize,
        context: &mut PortContext,
    ) -> Vec<PostponedMessage> {
        let mut current = Vec::with_capacity(waited.len());
        for mut message in waited {
            match snapshot.tenant(message.tenant()) {
                Some(view) => {
                    message.suspended.view = Arc::clone(view);
                    current.push(message);
                }
                None => self.refuse_postponed(message, (RpcStatus::UnknownTenant, TENANT_GONE_TEXT), context),
            }
        }
        let mut responses = mem::take(&mut self.responses);
        let places = current.iter_mut().zip(&mut responses).enumerate();
        let admitted: ArrayVec<AdmittedRequest<'_>, BURST> =
            places.filter_map(|(number, (message, response))| message.resume(number, &mut response.bytes)).collect();
        let end = self.run_messages(&admitted, piece, &mut responses, port, context);
        self.finish_messages(&admitted, end, &mut responses, bills, context);
        let suspended = suspend(admitted, end, &mut responses);
        responses.iter_mut().for_each(|response| shrink_to_pool(&mut response.bytes));
        self.responses = responses;
        let mut messages: Vec<Option<Vec<u8>>> = current.into_iter().map(|waited| Some(waited.message)).collect();
        let again = suspended.into_iter().filter_map(|suspended| {
            let message = messages.get_mut(suspended.number)?.take()?;
            Some(PostponedMessage { message, suspended })
        });
        again.collect()
    }

    /// Answers messages that were run to their end, and charges their shares for what was done of each.
    pub(super) fn finish_messages(
        &mut self,
        admitted: &[AdmittedRequest<'_>],
        end: Option<PieceEnd>,
        responses: &mut [ResponseBuffer],
        bills: &mut BatchCosts,
        context: &mut PortContext,
    ) {
        let mut is_done = true;
        for message in admitted {
            is_done &= end.is_none_or(|end| end.number != message.number);
            let owed = message.ranges.take_owed();
            if owed > 0 {
                self.bill(message.view.tenant.id, owed);
            }
            let requests = message.work.requests().saturating_add(owed);
            bills.add_work(message.share, requests.saturating_sub(1) + copy_cost_gets(message.work.bytes()));
            if !is_done || message.ticket.is_some() {
                continue;
            }
            let response = &mut responses[message.number];
            match response.tail.take() {
                Some(tail) => context.respond_shared(self.now_us, &message.origin, &response.bytes, tail),
                None => context.answer(self.now_us, &message.origin, &response.bytes),
            }
        }
    }

    /// Has messages wait for a further turn of their tenants': those that have waited before go on first. Who serves a
    /// neighbour's port leaves them there.
    pub(super) fn postpone(
        &mut self,
        messages: Vec<PostponedMessage>,
        has_waited: bool,
        own: bool,
        intake: &mut IngressScheduler,
        context: &mut PortContext,
    ) {
        self.counters.messages_postponed.add(messages.len() as u64);
        if !own {
            context.left_behind.extend(messages);
        } else if has_waited {
            messages.into_iter().rev().for_each(|message| intake.postpone_again(message));
        } else {
            for message in messages {
                if let Err(message) = intake.postpone(message) {
                    self.refuse_postponed(*message, (RpcStatus::Overloaded, NO_ROOM_TEXT), context);
                }
            }
        }
    }

    /// Answers the operations of a message that were not run.
    #[cold]
    fn refuse_postponed(
        &mut self,
        mut message: PostponedMessage,
        (status, text): (RpcStatus, &str),
        context: &mut PortContext,
    ) {
        let SuspendedMessage { origin, ticket, part, .. } = message.suspended;
        let mut response = mem::take(&mut message.suspended.response);
        if response.is_empty() {
            start_response(&origin.header, origin.header.operations, &mut response);
        }
        let Some((first, others)) = message.rest() else { return };
        for (part, operation) in (part..).zip(std::iter::once(first).chain(others.flatten())) {
            super::admission::count(&self.counters.responses, status as usize);
            let refuse = |response: &mut Vec<u8>| {
                record_operations::encode_refusal(&operation, status, text, response);
            };
            match ticket {
                Some(ticket) => context.deliver(self.now_us, ticket, part, refuse),
                None => refuse(&mut response),
            }
        }
        if ticket.is_none() {
            context.answer(self.now_us, &origin, &response);
        }
    }
}
