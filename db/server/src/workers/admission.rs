//! Admission: decides which messages may be run. It parses all of a message, finds its tenant, authenticates its
//! session, and recognises repeats. A message that may not run is answered with the reason, and counted.

mod operation_summary;

use std::cell::Cell;
use std::sync::Arc;

use arrayvec::ArrayVec;
use sandstorm_net::r2p2::{PeerAddr, R2p2Request};
use sandstorm_net::reply_cache::{RequestAdmission, bound_server_start, session_addr};
use sandstorm_net::rpc::{
    HELLO_BIND_SESSION, MESSAGE_HEADER_LEN, MessageDecodeError, MessageHeader, OP_NUMBER_OFFSET, OpKind, Operation,
    OperationIter, RpcStatus, STALE_PREVIOUS_START, encode_operation,
};
use sandstorm_net::seal::peer_session;
use sandstorm_net::shared_bytes::SharedBytes;

use self::operation_summary::OperationSummary;
use super::cold_progress::ColdProgress;
use super::context::count;
use super::operation_response::encode_refusal;
use super::pending_queries::QueryTag;
use super::piece_budget::MessageWork;
use super::port::PortContext;
use super::record_operations::operation_context::RangeWork;
use super::rejections::{self, AuthRejection, HELLO_REQUIRED, SHUTTING_DOWN, WRONG_SESSION_TENANT, WRONG_TOKEN};
use super::response_assembly::{RequestOrigin, ResponseId, start_response};
use crate::limits::{BURST, REPLAYED_BYTES_PER_PIECE};
use sandstorm_accounts::TokenHash;
use sandstorm_catalog::{DirectorySnapshot, TenantView};
use sandstorm_dialects::limits::MULTIGET_KEYS;
use sandstorm_metrics::{WorkerCounters, malformed_kind_index};

/// A request as it was received.
pub(super) struct IncomingRequest<'p> {
    /// The number of its slice in the batch.
    pub(super) slice: u8,
    pub(super) request: R2p2Request<'p>,
    /// The memory of its packet, if that is still in the device buffer.
    pub(super) packet: Option<&'p SharedBytes>,
    /// When its last packet was received, in the workers' nanoseconds.
    pub(super) received_ns: u64,
}

/// A message that may be run.
pub(super) struct AdmittedRequest<'d> {
    /// Its number in the batch.
    pub(super) number: usize,
    /// Its slice of the batch.
    pub(super) slice: u8,
    /// The response that waits for its invocations, if it has any.
    pub(super) response_id: Option<ResponseId>,
    pub(super) origin: RequestOrigin<PeerAddr>,
    pub(super) view: &'d Arc<TenantView>,
    /// Its first operation that is still to be run, and those behind it.
    pub(super) first: Operation<'d>,
    pub(super) others: OperationIter<'d>,
    /// The index of the first.
    pub(super) from: usize,
    /// The number of requests that it counts as.
    pub(super) requests: u32,
    /// The work of its ranges.
    pub(super) ranges: RangeWork,
    /// The work that was done for it in this piece.
    pub(super) work: MessageWork,
    /// How far the log has to be on the disk before its answer may leave.
    pub(super) shown: Cell<u64>,
    /// The memory of its packet, if that is still in the device buffer.
    pub(super) packet: Option<&'d SharedBytes>,
    /// Whether one of its values is stored in its packet.
    pub(super) has_stored_value: Cell<bool>,
    /// The cold records that it has met.
    pub(super) cold: ColdProgress,
}

/// The decision about a message.
pub(super) enum AdmissionDecision {
    /// Run it: it is the last of the admitted messages.
    Run,
    /// Send the response, which is written. It states why the message is not run, or repeats an earlier answer.
    Reply(RequestOrigin<PeerAddr>),
    /// Send the response, which is written, to an unauthenticated sender.
    Reject(RequestOrigin<PeerAddr>),
    /// Nothing: the message is being run and its answer will come, or there were too many rejections.
    Drop,
}

/// The state that messages are admitted against, beside that of the port.
pub(super) struct AdmissionContext<'d, 'w> {
    pub(super) snapshot: &'d DirectorySnapshot,
    /// The tenant that was looked up last: messages come in runs.
    pub(super) last: Cell<Option<(u32, &'d Arc<TenantView>)>>,
    pub(super) counters: &'w WorkerCounters,
    pub(super) worker: usize,
    pub(super) now_us: u64,
    /// Whether other machines may use closed tenants' data without a sealed session.
    pub(super) allow_plaintext: bool,
    /// Whether the server is shutting down: nothing new is run.
    pub(super) is_draining: bool,
    /// Bytes of answers that were given again in this piece.
    pub(super) replayed_bytes: Cell<usize>,
}

impl<'d> AdmissionContext<'d, '_> {
    /// The tenant of this id.
    #[inline]
    fn tenant(&self, id: u32) -> Option<&'d Arc<TenantView>> {
        if let Some((last, view)) = self.last.get()
            && last == id
        {
            return Some(view);
        }
        let view = self.snapshot.tenant(id)?;
        self.last.set(Some((id, view)));
        Some(view)
    }
}

/// For a message from another machine that is not sealed.
const SEAL_REQUIRED: AuthRejection = (
    RpcStatus::SealRequired,
    "from another machine a closed tenant's data are reached in a sealed session only: use a client that seals (all do by \
     default), or have the operator say --allow-plaintext",
);
/// A message without operations has no answer to wait for.
const NO_OPERATIONS: MessageDecodeError = MessageDecodeError::Operations(0);

/// Used in place of the header of a message that has none.
const EMPTY_HEADER: MessageHeader =
    MessageHeader { flags: 0, operations: 1, tenant: 0, session: 0, sequence: 0, acked: 0 };

/// The parts of a well-formed message: its header, its first operation, the others, and facts about all of them.
type ParsedMessage<'d> = (MessageHeader, Operation<'d>, OperationIter<'d>, OperationSummary);

/// Parses all of a message. It is inlined, and its result is used by value alone: else the result would be put together
/// in memory, which took longer than to parse it. A message that is rejected is parsed again.
#[inline(always)]
fn parse(message: &[u8]) -> Result<ParsedMessage<'_>, MessageDecodeError> {
    let (header, mut others) = MessageHeader::decode(message)?;
    // Without operations the count is at fault, whatever follows the header.
    if header.operations == 0 {
        return Err(NO_OPERATIONS);
    }
    let first = others.next().ok_or(NO_OPERATIONS)??;
    let mut summary = OperationSummary { repeatable: true, only_pings: true, ..OperationSummary::default() };
    summary.note(first.op, first.number);
    for operation in others.clone() {
        let operation = operation?;
        summary.note(operation.op, operation.number);
    }
    Ok((header, first, others, summary))
}

/// Decides about one message. A message that may run is added to `admitted`; else its answer is written to `response`.
#[inline(always)]
pub(super) fn admit<'d>(
    admission: &AdmissionContext<'d, '_>,
    (number, incoming): (usize, &'d IncomingRequest<'_>),
    port: &mut PortContext,
    response: &mut Vec<u8>,
    admitted: &mut ArrayVec<AdmittedRequest<'d>, BURST>,
) -> AdmissionDecision {
    admission.counters.messages.add(1);
    let request = &incoming.request;
    let (header, first, others, summary) = match parse(&request.message) {
        Ok(parsed) => parsed,
        Err(malformed) => return reject_malformed(admission, request, malformed, port, response),
    };
    let Some(view) = admission.tenant(header.tenant) else {
        return handle_unknown_tenant(admission, request, (header, &first), summary.only_pings, port, response);
    };
    if let Err(rejection) = authenticate(admission, view, request.peer, &header, &first, port) {
        return reject_unauthenticated(admission, request, rejection, port, response);
    }
    let header = port.note_home(header, view.tenant.home_worker);
    if summary.hello {
        register_session(admission, request.peer, &header, port);
    }
    if summary.keys > MULTIGET_KEYS {
        return reject_too_many_keys(admission, request, header, response);
    }
    let (invokes, requests) = (summary.invokes, summary.requests(header.operations));
    let within_rate = view.tenant.admit_requests(admission.now_us.saturating_mul(1000), requests);
    // Before it is rejected: a message that ran must not get the answer that it did not.
    let remembered = !summary.repeatable && !header.is_idempotent();
    if remembered && let Some(decision) = check_replay(admission, request, header, port, response) {
        return decision;
    }
    let queries = &port.assembly.queries;
    let is_query = invokes && !remembered;
    let query = if is_query { queries.tag(&request.peer, request.request_id, &header) } else { QueryTag::NONE };
    if queries.waits(query) {
        return drop_duplicate_query(admission, within_rate, port);
    }
    if !within_rate || admission.is_draining {
        return reject_unavailable(admission, view, request, header, (remembered, within_rate), port, response);
    }
    view.tenant.usage.worker(admission.worker).requests.add(u64::from(header.operations));
    view.tenant.usage.worker(admission.worker).packet_work.add(u64::from(requests));
    let R2p2Request { peer, request_id, .. } = *request;
    let origin = RequestOrigin { peer, request_id, header, remembered, query, received_ns: incoming.received_ns };
    let response_id = invokes.then(|| port.assembly.open(origin, usize::from(header.operations)));
    let (packet, ranges, has_stored_value) = (incoming.packet, RangeWork::new(), Cell::new(false));
    admitted.push(AdmittedRequest {
        number,
        slice: incoming.slice,
        response_id,
        origin,
        view,
        first,
        others,
        from: 0,
        requests,
        ranges,
        work: MessageWork::default(),
        shown: Cell::new(0),
        packet,
        has_stored_value,
        cold: ColdProgress::default(),
    });
    AdmissionDecision::Run
}

/// Handles the hello of an authenticated session.
#[cold]
fn register_session(
    admission: &AdmissionContext<'_, '_>,
    peer: PeerAddr,
    header: &MessageHeader,
    port: &mut PortContext,
) {
    if peer_session(peer).is_none() {
        port.verified_peers.note(peer, header.tenant, admission.now_us);
    }
    port.reply_cache.greet(admission.now_us, peer, header.tenant, header.session, header.sequence);
}

/// The origin of a message that is not run.
fn rejected_origin(request: &R2p2Request<'_>, header: MessageHeader) -> RequestOrigin<PeerAddr> {
    let (peer, request_id) = (request.peer, request.request_id);
    RequestOrigin { peer, request_id, header, remembered: false, query: QueryTag::NONE, received_ns: 0 }
}

/// Answers bytes that are no well-formed message: with their header if they have one, and one operation with the error.
#[cold]
fn reject_malformed(
    admission: &AdmissionContext<'_, '_>,
    request: &R2p2Request<'_>,
    malformed: MessageDecodeError,
    port: &mut PortContext,
    response: &mut Vec<u8>,
) -> AdmissionDecision {
    let status =
        if matches!(malformed, MessageDecodeError::Version(_)) { RpcStatus::Version } else { RpcStatus::Malformed };
    let header = legible_header(&request.message);
    start_response(&header, 1, response);
    let (text, limit_bytes) = (malformed.to_string(), rejections::reply_limit_bytes(&request.message));
    encode_refusal(&Operation::new(OpKind::Ping), status, rejections::truncate_to_fit(&text, limit_bytes, 1), response);
    count(&admission.counters.malformed, malformed_kind_index(&malformed));
    count(&admission.counters.responses, status as usize);
    finish_rejection(admission, header, request, port, response)
}

/// Handles a message whose tenant does not exist. Pings need no tenant: they use the id 0, which no tenant has. All
/// other messages are answered as a closed tenant answers an unauthenticated sender, with the same text after the same
/// work. Otherwise a client could find existing ids by trying.
#[cold]
fn handle_unknown_tenant(
    admission: &AdmissionContext<'_, '_>,
    request: &R2p2Request<'_>,
    (header, first): (MessageHeader, &Operation<'_>),
    only_pings: bool,
    port: &mut PortContext,
    response: &mut Vec<u8>,
) -> AdmissionDecision {
    let is_anonymous = only_pings && header.tenant == EMPTY_HEADER.tenant;
    let header = if is_anonymous && rejections::fits_one_packet(&request.message) {
        encode_pong(admission, &request.message, response)
    } else if is_anonymous {
        encode_rejection(
            admission,
            request,
            RpcStatus::TooLarge,
            RejectionText::Truncated(rejections::LONG_PING),
            response,
        )
    } else {
        let rejection = match closed_tenant_rejection(admission, header.tenant, request.peer) {
            Some(rejection) => rejection,
            None if first.op == OpKind::Hello => {
                TokenHash::refuse(first.value);
                WRONG_TOKEN
            }
            None => HELLO_REQUIRED,
        };
        return reject_unauthenticated(admission, request, rejection, port, response);
    };
    finish_rejection(admission, header, request, port, response)
}

/// Rejects a message from a session that may not act for its tenant.
#[cold]
fn reject_unauthenticated(
    admission: &AdmissionContext<'_, '_>,
    request: &R2p2Request<'_>,
    (status, text): AuthRejection,
    port: &mut PortContext,
    response: &mut Vec<u8>,
) -> AdmissionDecision {
    let header = encode_rejection(admission, request, status, RejectionText::Truncated(text), response);
    finish_rejection(admission, header, request, port, response)
}

/// Answers a message that asks for too many records.
#[cold]
fn reject_too_many_keys(
    admission: &AdmissionContext<'_, '_>,
    request: &R2p2Request<'_>,
    header: MessageHeader,
    response: &mut Vec<u8>,
) -> AdmissionDecision {
    let text = format!("the multigets and ranges of one message have at most {MULTIGET_KEYS} keys; ask in several");
    encode_rejection(admission, request, RpcStatus::TooLarge, RejectionText::Whole(&text), response);
    AdmissionDecision::Reply(rejected_origin(request, header))
}

/// Answers a message of a tenant over its rate, or one that comes while the server is shutting down.
#[cold]
fn reject_unavailable(
    admission: &AdmissionContext<'_, '_>,
    view: &TenantView,
    request: &R2p2Request<'_>,
    header: MessageHeader,
    (remembered, within_rate): (bool, bool),
    port: &mut PortContext,
    response: &mut Vec<u8>,
) -> AdmissionDecision {
    if remembered {
        port.reply_cache.cancel(request.peer, header.tenant, header.session, header.sequence);
    }
    if within_rate {
        encode_rejection(admission, request, RpcStatus::ShuttingDown, RejectionText::Whole(SHUTTING_DOWN), response);
        return AdmissionDecision::Reply(rejected_origin(request, header));
    }
    view.tenant.usage.worker(admission.worker).over_quota.add(u64::from(header.operations));
    port.rejected += 1;
    let text = "quota requests_per_s: too many requests a second; operations count one by one, each key of a multiget, \
                each that a range may find, and each step of a commit; a count, a rank or an nth counts as 16";
    encode_rejection(admission, request, RpcStatus::OverQuota, RejectionText::Whole(text), response);
    AdmissionDecision::Reply(rejected_origin(request, header))
}

/// Drops a repeat of a query that is still being run.
#[cold]
fn drop_duplicate_query(
    admission: &AdmissionContext<'_, '_>,
    within_rate: bool,
    port: &mut PortContext,
) -> AdmissionDecision {
    // Repeats are requests, too: a sender of too many is dropped early.
    port.rejected += u64::from(!within_rate);
    admission.counters.duplicates.add(1);
    AdmissionDecision::Drop
}

/// Handles a message that must run once, if it was here before. None if it was not.
fn check_replay(
    admission: &AdmissionContext<'_, '_>,
    request: &R2p2Request<'_>,
    header: MessageHeader,
    port: &mut PortContext,
    response: &mut Vec<u8>,
) -> Option<AdmissionDecision> {
    let (session, sequence, acked) = (header.session, header.sequence, header.acked);
    match port.reply_cache.admit(admission.now_us, request.peer, header.tenant, session, sequence, acked) {
        RequestAdmission::Execute => return None,
        RequestAdmission::InProgress => {
            admission.counters.duplicates.add(1);
            return Some(AdmissionDecision::Drop);
        }
        RequestAdmission::Replay(answer) => {
            // Each answer is copied for a request of a few bytes. A client without an answer repeats its request.
            if admission.replayed_bytes.get() >= REPLAYED_BYTES_PER_PIECE {
                admission.counters.duplicates.add(1);
                return Some(AdmissionDecision::Drop);
            }
            admission.replayed_bytes.set(admission.replayed_bytes.get() + answer.len());
            response.clear();
            response.extend_from_slice(answer);
            admission.counters.duplicates.add(1);
        }
        RequestAdmission::Stale => {
            let text = "the request is too old to tell whether it ran; read before you repeat it";
            encode_rejection(admission, request, RpcStatus::Stale, RejectionText::Whole(text), response);
        }
        RequestAdmission::PreviousStart => {
            let text = "the session is of an earlier start of this server, which may have run the request; say hello in a new one";
            encode_rejection(admission, request, RpcStatus::Stale, RejectionText::Whole(text), response);
            set_first_number(response, STALE_PREVIOUS_START);
        }
    }
    Some(AdmissionDecision::Reply(rejected_origin(request, header)))
}

/// Rejects a message from an unauthenticated sender. Nothing of the request is remembered: a repeat has to bring all of
/// it again, and is rejected, counted and limited as this one.
fn finish_rejection(
    admission: &AdmissionContext<'_, '_>,
    header: MessageHeader,
    request: &R2p2Request<'_>,
    port: &mut PortContext,
    response: &[u8],
) -> AdmissionDecision {
    port.rejected += 1;
    port.endpoint.forget(request);
    if port.rejections.admits(admission.now_us, response.len(), rejections::reply_limit_bytes(&request.message)) {
        AdmissionDecision::Reject(rejected_origin(request, header))
    } else {
        AdmissionDecision::Drop
    }
}

/// Authenticates the session of a message: its tenant is open, or the session has shown the token, or shows it now. A
/// sealed session has shown it by its handshake, for its own tenant alone; it says hello all the same, so that a client
/// learns of a server that restarted. From other machines a closed tenant needs a sealed session.
#[inline]
fn authenticate(
    admission: &AdmissionContext<'_, '_>,
    view: &TenantView,
    peer: PeerAddr,
    header: &MessageHeader,
    first: &Operation<'_>,
    port: &mut PortContext,
) -> Result<(), AuthRejection> {
    let (tenant, session, token) = (&view.tenant, header.session, first.value);
    let sealed = peer_session(peer);
    if tenant.open && sealed.is_none_or(|(sealed_for, _)| sealed_for == tenant.id) {
        return Ok(());
    }
    if let Some(rejection) = closed_tenant_rejection(admission, tenant.id, peer) {
        return Err(rejection);
    }
    let is_bound = if first.op == OpKind::Hello {
        first.number == HELLO_BIND_SESSION
    } else {
        bound_server_start(header.sequence) != 0
    };
    let session_address = session_addr(peer, is_bound);
    let credential = match first.op {
        OpKind::Hello if sealed.is_some() => {
            port.seal.credential(peer).filter(|opened_with| tenant.has_credential(*opened_with))
        }
        OpKind::Hello => tenant.credential_of(token),
        _ if port
            .sessions
            .shown(session_address, session, tenant.id)
            .is_some_and(|shown| tenant.has_credential(shown)) =>
        {
            if port.sessions.verified(peer) {
                port.verified_peers.note(peer, tenant.id, admission.now_us);
            }
            return Ok(());
        }
        _ => return Err(HELLO_REQUIRED),
    };
    let Some(credential) = credential else { return Err(WRONG_TOKEN) };
    port.sessions.admit((session_address, peer), session, tenant.id, credential);
    Ok(())
}

/// The rejection of a sender that cannot act for a closed tenant of that id, whatever token it shows. It does not
/// depend on whether the tenant exists.
#[inline]
fn closed_tenant_rejection(admission: &AdmissionContext<'_, '_>, tenant: u32, peer: PeerAddr) -> Option<AuthRejection> {
    match peer_session(peer) {
        Some((of, _)) => (of != tenant).then_some(WRONG_SESSION_TENANT),
        None => (!admission.allow_plaintext && !peer.ip().to_canonical().is_loopback()).then_some(SEAL_REQUIRED),
    }
}

/// The text of a rejection.
#[derive(Clone, Copy)]
enum RejectionText<'t> {
    Whole(&'t str),
    /// The part of it that may be sent to an unauthenticated sender.
    Truncated(&'t str),
}

/// Answers every operation of a well-formed message with one status, or one for all if they are many; the first has the
/// text. Returns its header.
#[cold]
fn encode_rejection(
    admission: &AdmissionContext<'_, '_>,
    request: &R2p2Request<'_>,
    status: RpcStatus,
    text: RejectionText<'_>,
    response: &mut Vec<u8>,
) -> MessageHeader {
    let (header, operations) = reparse(&request.message);
    let answered = rejections::reply_operations(header.operations);
    let mut text = match text {
        RejectionText::Whole(text) => text,
        RejectionText::Truncated(text) => {
            rejections::truncate_to_fit(text, rejections::reply_limit_bytes(&request.message), answered)
        }
    };
    start_response(&header, answered, response);
    for operation in operations.take(usize::from(answered)) {
        count(&admission.counters.requests, operation.op as usize);
        count(&admission.counters.responses, status as usize);
        encode_refusal(&operation, status, std::mem::take(&mut text), response);
    }
    header
}

/// Sets the number of the first operation of a response.
fn set_first_number(response: &mut [u8], number: u64) {
    if let Some(number_bytes) =
        response.get_mut(MESSAGE_HEADER_LEN + OP_NUMBER_OFFSET..).and_then(<[u8]>::first_chunk_mut)
    {
        *number_bytes = number.to_le_bytes();
    }
}

/// Answers a message of pings. Returns its header.
#[cold]
fn encode_pong(admission: &AdmissionContext<'_, '_>, message: &[u8], response: &mut Vec<u8>) -> MessageHeader {
    let (header, operations) = reparse(message);
    start_response(&header, header.operations, response);
    for operation in operations {
        count(&admission.counters.requests, operation.op as usize);
        count(&admission.counters.responses, RpcStatus::Ok as usize);
        encode_operation(&Operation { value: operation.value, ..Operation::new(OpKind::Ping) }, response);
    }
    header
}

/// The header and the operations of a message; the empty header if it has none.
fn reparse(message: &[u8]) -> (MessageHeader, impl Iterator<Item = Operation<'_>>) {
    let decoded = MessageHeader::decode(message).ok();
    let header = decoded.as_ref().map_or(EMPTY_HEADER, |(header, _)| *header);
    (header, decoded.into_iter().flat_map(|(_, operations)| operations.flatten()))
}

/// The header of a message that is not well-formed; the empty header if it has none. The number of operations may be
/// what is wrong; a client finds the request of its answer by the rest.
fn legible_header(message: &[u8]) -> MessageHeader {
    let Some(mut head) = message.first_chunk::<MESSAGE_HEADER_LEN>().copied() else { return EMPTY_HEADER };
    let [_, _, low, high, ..] = &mut head;
    (*low, *high) = (0, 0);
    MessageHeader::decode(&head).map_or(EMPTY_HEADER, |(header, _)| header)
}

#[cfg(test)]
mod tests;
