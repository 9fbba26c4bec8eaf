//! The door: which messages may be run. Parses all of a message, finds its tenant, authenticates its session, and keeps
//! out what was run before. Whatever is not let in is answered with the reason, and counted.

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

use super::pending_queries::QueryTag;
use super::port::PortContext;
use super::record_operations::{self, RangeWork};
use super::rejections;
use super::response_assembly::{RequestOrigin, ResponseId, start_response};
use crate::limits::BURST;
use sandstorm_accounts::TokenHash;
use sandstorm_catalog::{DirectorySnapshot, TenantView};
use sandstorm_dialects::limits::MULTIGET_KEYS;
use sandstorm_metrics::{SingleWriterCounter, WorkerCounters, malformed_kind_index};

/// A request as it came.
pub(super) struct IncomingRequest<'p> {
    /// Which share of the part it is of.
    pub(super) share: u8,
    pub(super) request: R2p2Request<'p>,
    /// The memory of its packet, if that stayed where it came.
    pub(super) packet: Option<&'p SharedBytes>,
}

/// A message that may be run.
pub(super) struct AdmittedRequest<'d> {
    /// Which of the burst's messages it is.
    pub(super) number: usize,
    /// What its response waits for.
    pub(super) ticket: Option<ResponseId>,
    pub(super) origin: RequestOrigin<PeerAddr>,
    pub(super) view: &'d Arc<TenantView>,
    /// Its first operation, and the others.
    pub(super) first: Operation<'d>,
    pub(super) others: OperationIter<'d>,
    /// How many requests it counts as.
    pub(super) requests: u32,
    /// What its ranges have done.
    pub(super) ranges: RangeWork,
    /// The memory of its packet, if that stayed where it came.
    pub(super) packet: Option<&'d SharedBytes>,
    /// Whether a value of it is stored there.
    pub(super) has_stored_value: Cell<bool>,
}

/// What becomes of a message at the door.
pub(super) enum AdmissionDecision {
    /// Run it: it stands at the end of the messages that may be run.
    Run,
    /// Do not: the response is written. It says why not, or what was answered when the message came before.
    Reply(RequestOrigin<PeerAddr>),
    /// Do not, and say so to who has not shown who it is: the response is written.
    Reject(RequestOrigin<PeerAddr>),
    /// Do not: the message is being run, and its answer will come; or there were too many answers to strangers.
    Drop,
}

/// What the door knows.
pub(super) struct AdmissionContext<'d, 'w> {
    pub(super) snapshot: &'d DirectorySnapshot,
    /// The tenant that was looked up last: messages come in runs.
    pub(super) last: Cell<Option<(u32, &'d Arc<TenantView>)>>,
    pub(super) counters: &'w WorkerCounters,
    pub(super) worker: usize,
    pub(super) now_us: u64,
    /// Whether other machines may use closed tenants' data without a sealed session.
    pub(super) allow_plaintext: bool,
    /// The server is shutting down.
    pub(super) stops: bool,
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

/// What an unauthenticated sender is told: the same whether the tenant that it names is there or not.
type AuthRejection = (RpcStatus, &'static str);

/// What a plain message from another machine is told.
const SEAL_REQUIRED: AuthRejection = (
    RpcStatus::SealRequired,
    "from another machine a closed tenant's data are reached in a sealed session only: use a client that seals (all do by \
     default), or have the operator say --allow-plaintext",
);
const WRONG_SESSION_TENANT: AuthRejection =
    (RpcStatus::Unauthenticated, "a sealed session acts only for the tenant whose token opened it");
const HELLO_REQUIRED: AuthRejection = (
    RpcStatus::Unauthenticated,
    "the session has not shown the token of a tenant with this id: send a hello first, or check the id",
);
const WRONG_TOKEN: AuthRejection = (RpcStatus::Unauthenticated, "no tenant has this id and this token: check both");

/// What whoever asks for something is told while the server is shutting down.
const SHUTTING_DOWN: &str = "the server is shutting down and did not run this; ask again when it is back";

/// A message that asks for nothing has no answer to wait for.
const NO_OPERATIONS: MessageDecodeError = MessageDecodeError::Operations(0);

/// The header of what is no message.
const EMPTY_HEADER: MessageHeader =
    MessageHeader { flags: 0, operations: 1, tenant: 0, session: 0, sequence: 0, acked: 0 };

/// What a look over all operations of a message tells.
struct OperationSummary {
    /// Nothing that would harm if it ran twice.
    repeatable: bool,
    invokes: bool,
    /// Pings alone: no tenant is needed.
    only_pings: bool,
    /// The session presents a token.
    hello: bool,
    /// Keys of all its multigets, and records that its ranges ask for.
    keys: u64,
    /// Multigets and ranges.
    multigets: u64,
}

impl OperationSummary {
    /// Looks at one more operation.
    #[inline]
    fn note(&mut self, op: OpKind, number: u64) {
        if op == OpKind::MultiGet {
            self.keys = self.keys.saturating_add(number);
            self.multigets += 1;
        }
        if op == OpKind::Range {
            self.keys = self.keys.saturating_add(u64::from(number as u32).min(MULTIGET_KEYS));
            self.multigets += 1;
        }
        self.only_pings &= op == OpKind::Ping;
        self.invokes |= op == OpKind::Invoke;
        self.hello |= op == OpKind::Hello;
        self.repeatable &= matches!(op, OpKind::Ping | OpKind::Hello | OpKind::Get | OpKind::MultiGet | OpKind::Range);
    }

    /// How many requests a message of `operations` counts as: each key of a multiget and each record that a range may
    /// answer is one, as if it were asked for alone.
    fn requests(&self, operations: u16) -> u32 {
        let others = u64::from(operations).saturating_sub(self.multigets);
        u32::try_from(others + self.keys.max(self.multigets)).unwrap_or(u32::MAX)
    }
}

/// A message that is well-formed as a whole: its header, its first operation, the others, and what a look over all of
/// them tells.
type ParsedMessage<'d> = (MessageHeader, Operation<'d>, OperationIter<'d>, OperationSummary);

/// Parses all of a message. In line, and what it finds is looked at by value alone: else all of it would be put
/// together in memory, which took longer than to parse it. What is not let in is parsed again to be refused.
#[inline(always)]
fn parse(message: &[u8]) -> Result<ParsedMessage<'_>, MessageDecodeError> {
    let (header, mut others) = MessageHeader::decode(message)?;
    // Of no operations the count is at fault, whatever stands behind the header.
    if header.operations == 0 {
        return Err(NO_OPERATIONS);
    }
    let first = others.next().ok_or(NO_OPERATIONS)??;
    let mut survey =
        OperationSummary { repeatable: true, invokes: false, only_pings: true, hello: false, keys: 0, multigets: 0 };
    survey.note(first.op, first.number);
    for operation in others.clone() {
        let operation = operation?;
        survey.note(operation.op, operation.number);
    }
    Ok((header, first, others, survey))
}

/// Decides over one message. Who may be run is put at the end of `admitted`; a refusal's response is written to
/// `response`.
#[inline(always)]
pub(super) fn admit<'d>(
    door: &AdmissionContext<'d, '_>,
    (number, incoming): (usize, &'d IncomingRequest<'_>),
    desk: &mut PortContext,
    response: &mut Vec<u8>,
    admitted: &mut ArrayVec<AdmittedRequest<'d>, BURST>,
) -> AdmissionDecision {
    door.counters.messages.add(1);
    let request = &incoming.request;
    let (header, first, others, survey) = match parse(&request.message) {
        Ok(parsed) => parsed,
        Err(malformed) => return reject_malformed(door, request, malformed, desk, response),
    };
    let Some(view) = door.tenant(header.tenant) else {
        return handle_unknown_tenant(door, request, (header, &first), survey.only_pings, desk, response);
    };
    if let Err(no) = authenticate(door, view, request.peer, &header, &first, desk) {
        return reject_unauthenticated(door, request, no, desk, response);
    }
    if survey.hello {
        register_session(door, request.peer, &header, desk);
    }
    if survey.keys > MULTIGET_KEYS {
        return reject_too_many_keys(door, request, header, response);
    }
    let (invokes, requests) = (survey.invokes, survey.requests(header.operations));
    let within_rate = view.tenant.admit_requests(door.now_us.saturating_mul(1000), requests);
    // Before it is refused: what has run must not be said not to have.
    let remembered = !survey.repeatable && !header.is_idempotent();
    if remembered && let Some(verdict) = check_replay(door, request, header, desk, response) {
        return verdict;
    }
    let queries = &desk.assembly.queries;
    let is_query = invokes && !remembered;
    let query = if is_query { queries.mark(&request.peer, request.request_id, &header) } else { QueryTag::NONE };
    if queries.waits(query) {
        return drop_duplicate_query(door, within_rate, desk);
    }
    if !within_rate || door.stops {
        return reject_unavailable(door, view, request, header, (remembered, within_rate), desk, response);
    }
    view.tenant.usage.worker(door.worker).requests.add(u64::from(header.operations));
    let origin = RequestOrigin { peer: request.peer, request_id: request.request_id, header, remembered, query };
    let ticket = invokes.then(|| desk.assembly.open(origin, usize::from(header.operations)));
    let (packet, ranges, has_stored_value) = (incoming.packet, RangeWork::new(), Cell::new(false));
    admitted.push(AdmittedRequest {
        number,
        ticket,
        origin,
        view,
        first,
        others,
        requests,
        ranges,
        packet,
        has_stored_value,
    });
    AdmissionDecision::Run
}

/// A session that may act for its tenant says hello.
#[cold]
fn register_session(door: &AdmissionContext<'_, '_>, peer: PeerAddr, header: &MessageHeader, desk: &mut PortContext) {
    if peer_session(peer).is_none() {
        desk.known.note(peer, header.tenant, door.now_us);
    }
    desk.once.greet(door.now_us, peer, header.tenant, header.session, header.sequence);
}

/// Whom to answer what is not let in.
fn rejected_origin(request: &R2p2Request<'_>, header: MessageHeader) -> RequestOrigin<PeerAddr> {
    let (peer, request_id) = (request.peer, request.request_id);
    RequestOrigin { peer, request_id, header, remembered: false, query: QueryTag::NONE }
}

/// Answers a message that is none: with its header if it has one, and one operation that says what is wrong.
#[cold]
fn reject_malformed(
    door: &AdmissionContext<'_, '_>,
    request: &R2p2Request<'_>,
    malformed: MessageDecodeError,
    desk: &mut PortContext,
    response: &mut Vec<u8>,
) -> AdmissionDecision {
    let status =
        if matches!(malformed, MessageDecodeError::Version(_)) { RpcStatus::Version } else { RpcStatus::Malformed };
    let header = reparse(&request.message).0;
    start_response(&header, 1, response);
    let (text, asked) = (malformed.to_string(), rejections::reply_limit_bytes(&request.message));
    record_operations::encode_refusal(
        &Operation::new(OpKind::Ping),
        status,
        rejections::truncate_to_fit(&text, asked, 1),
        response,
    );
    count(&door.counters.malformed, malformed_kind_index(&malformed));
    count(&door.counters.responses, status as usize);
    finish_rejection(door, header, request, desk, response)
}

/// What becomes of a message that names no tenant that there is. Pings need none, under the id 0, which is nobody's.
/// All else is answered as a closed tenant answers an unauthenticated sender, in the same words and after the same
/// work: else ids could be tried until one is a tenant's.
#[cold]
fn handle_unknown_tenant(
    door: &AdmissionContext<'_, '_>,
    request: &R2p2Request<'_>,
    (header, first): (MessageHeader, &Operation<'_>),
    only_pings: bool,
    desk: &mut PortContext,
    response: &mut Vec<u8>,
) -> AdmissionDecision {
    let nameless = only_pings && header.tenant == EMPTY_HEADER.tenant;
    let header = if nameless && rejections::fits_one_packet(&request.message) {
        encode_pong(door, &request.message, response)
    } else if nameless {
        encode_rejection(door, request, RpcStatus::TooLarge, RejectionText::Truncated(rejections::LONG_PING), response)
    } else {
        let no = match closed_tenant_rejection(door, header.tenant, request.peer) {
            Some(no) => no,
            None if first.op == OpKind::Hello => {
                TokenHash::refuse(first.value);
                WRONG_TOKEN
            }
            None => HELLO_REQUIRED,
        };
        return reject_unauthenticated(door, request, no, desk, response);
    };
    finish_rejection(door, header, request, desk, response)
}

/// What becomes of a message of somebody who may not act for its tenant.
#[cold]
fn reject_unauthenticated(
    door: &AdmissionContext<'_, '_>,
    request: &R2p2Request<'_>,
    (status, text): AuthRejection,
    desk: &mut PortContext,
    response: &mut Vec<u8>,
) -> AdmissionDecision {
    let header = encode_rejection(door, request, status, RejectionText::Truncated(text), response);
    finish_rejection(door, header, request, desk, response)
}

/// What becomes of a message that asks for too many records.
#[cold]
fn reject_too_many_keys(
    door: &AdmissionContext<'_, '_>,
    request: &R2p2Request<'_>,
    header: MessageHeader,
    response: &mut Vec<u8>,
) -> AdmissionDecision {
    let text = format!("the multigets and ranges of one message have at most {MULTIGET_KEYS} keys; ask in several");
    encode_rejection(door, request, RpcStatus::TooLarge, RejectionText::Whole(&text), response);
    AdmissionDecision::Reply(rejected_origin(request, header))
}

/// What becomes of a message of a tenant that asks for too much, or while the server is shutting down.
#[cold]
fn reject_unavailable(
    door: &AdmissionContext<'_, '_>,
    view: &TenantView,
    request: &R2p2Request<'_>,
    header: MessageHeader,
    (remembered, within_rate): (bool, bool),
    desk: &mut PortContext,
    response: &mut Vec<u8>,
) -> AdmissionDecision {
    if remembered {
        desk.once.cancel(request.peer, header.tenant, header.session, header.sequence);
    }
    if within_rate {
        encode_rejection(door, request, RpcStatus::ShuttingDown, RejectionText::Whole(SHUTTING_DOWN), response);
        return AdmissionDecision::Reply(rejected_origin(request, header));
    }
    view.tenant.usage.worker(door.worker).over_quota.add(u64::from(header.operations));
    desk.refused += 1;
    let text = "quota requests_per_s: too many requests a second; operations count one by one, each key of a multiget, and each that a range may find";
    encode_rejection(door, request, RpcStatus::OverQuota, RejectionText::Whole(text), response);
    AdmissionDecision::Reply(rejected_origin(request, header))
}

/// What becomes of a query that was here before and waits for its answer.
#[cold]
fn drop_duplicate_query(
    door: &AdmissionContext<'_, '_>,
    within_rate: bool,
    desk: &mut PortContext,
) -> AdmissionDecision {
    // Repeats are requests, too; who sends too many of them is dropped early.
    desk.refused += u64::from(!within_rate);
    door.counters.duplicates.add(1);
    AdmissionDecision::Drop
}

/// What becomes of a message that must run once, if it was here before.
fn check_replay(
    door: &AdmissionContext<'_, '_>,
    request: &R2p2Request<'_>,
    header: MessageHeader,
    desk: &mut PortContext,
    response: &mut Vec<u8>,
) -> Option<AdmissionDecision> {
    let (session, sequence, acked) = (header.session, header.sequence, header.acked);
    match desk.once.admit(door.now_us, request.peer, header.tenant, session, sequence, acked) {
        RequestAdmission::Execute => return None,
        RequestAdmission::InProgress => {
            door.counters.duplicates.add(1);
            return Some(AdmissionDecision::Drop);
        }
        RequestAdmission::Replay(answer) => {
            response.clear();
            response.extend_from_slice(answer);
            door.counters.duplicates.add(1);
        }
        RequestAdmission::Stale => {
            let text = "the request is too old to tell whether it ran; read before you repeat it";
            encode_rejection(door, request, RpcStatus::Stale, RejectionText::Whole(text), response);
        }
        RequestAdmission::PreviousStart => {
            let text = "the session is of an earlier start of this server, which may have run the request; say hello in a new one";
            encode_rejection(door, request, RpcStatus::Stale, RejectionText::Whole(text), response);
            set_first_number(response, STALE_PREVIOUS_START);
        }
    }
    Some(AdmissionDecision::Reply(rejected_origin(request, header)))
}

/// What becomes of a refusal to somebody who has not shown who it is. Nothing is kept of its request: a repeat has to
/// bring all of it again, and is refused, counted and bounded as this one.
fn finish_rejection(
    door: &AdmissionContext<'_, '_>,
    header: MessageHeader,
    request: &R2p2Request<'_>,
    desk: &mut PortContext,
    response: &[u8],
) -> AdmissionDecision {
    desk.refused += 1;
    desk.endpoint.forget(request);
    if desk.refusals.admits(door.now_us, response.len(), rejections::reply_limit_bytes(&request.message)) {
        AdmissionDecision::Reject(rejected_origin(request, header))
    } else {
        AdmissionDecision::Drop
    }
}

/// Whether the session may act for the tenant: the tenant is open, the session has shown its token, or shows it now. A
/// sealed session has shown it by its handshake, for its own tenant alone; it says hello all the same, so that a client
/// learns of a server that restarted. From other machines a closed tenant's data are reached in no other way.
#[inline]
fn authenticate(
    door: &AdmissionContext<'_, '_>,
    view: &TenantView,
    peer: PeerAddr,
    header: &MessageHeader,
    first: &Operation<'_>,
    desk: &mut PortContext,
) -> Result<(), AuthRejection> {
    let (tenant, session, token) = (&view.tenant, header.session, first.value);
    let sealed = peer_session(peer);
    if tenant.open && sealed.is_none_or(|(of, _)| of == tenant.id) {
        return Ok(());
    }
    if let Some(no) = closed_tenant_rejection(door, tenant.id, peer) {
        return Err(no);
    }
    let is_bound = if first.op == OpKind::Hello {
        first.number == HELLO_BIND_SESSION
    } else {
        bound_server_start(header.sequence) != 0
    };
    let home = session_addr(peer, is_bound);
    let credential = match first.op {
        OpKind::Hello if sealed.is_some() => {
            desk.seal.credential(peer).filter(|opened_with| tenant.has_credential(*opened_with))
        }
        OpKind::Hello => tenant.credential_of(token),
        _ if desk.sessions.shown(home, session, tenant.id).is_some_and(|shown| tenant.has_credential(shown)) => {
            if desk.sessions.heard(peer) {
                desk.known.note(peer, tenant.id, door.now_us);
            }
            return Ok(());
        }
        _ => return Err(HELLO_REQUIRED),
    };
    let Some(credential) = credential else { return Err(WRONG_TOKEN) };
    desk.sessions.admit((home, peer), session, tenant.id, credential);
    Ok(())
}

/// Why a sender cannot act for a closed tenant of that id whatever token it shows, if so. Whether there is such a
/// tenant plays no part.
#[inline]
fn closed_tenant_rejection(door: &AdmissionContext<'_, '_>, tenant: u32, peer: PeerAddr) -> Option<AuthRejection> {
    match peer_session(peer) {
        Some((of, _)) => (of != tenant).then_some(WRONG_SESSION_TENANT),
        None => (!door.allow_plaintext && !peer.ip().to_canonical().is_loopback()).then_some(SEAL_REQUIRED),
    }
}

/// A refusal's text.
#[derive(Clone, Copy)]
enum RejectionText<'t> {
    Whole(&'t str),
    /// As much of it as may be answered to who has not shown who it is.
    Truncated(&'t str),
}

/// Answers every operation of a well-formed message with one status, or one for all if they are many; the first says
/// why. Tells its header.
#[cold]
fn encode_rejection(
    door: &AdmissionContext<'_, '_>,
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
        count(&door.counters.requests, operation.op as usize);
        count(&door.counters.responses, status as usize);
        record_operations::encode_refusal(&operation, status, std::mem::take(&mut text), response);
    }
    header
}

/// Gives a number to the first operation of a response.
fn set_first_number(response: &mut [u8], number: u64) {
    if let Some(place) = response.get_mut(MESSAGE_HEADER_LEN + OP_NUMBER_OFFSET..).and_then(<[u8]>::first_chunk_mut) {
        *place = number.to_le_bytes();
    }
}

/// Answers a message of pings. Tells its header.
#[cold]
fn encode_pong(door: &AdmissionContext<'_, '_>, message: &[u8], response: &mut Vec<u8>) -> MessageHeader {
    let (header, operations) = reparse(message);
    start_response(&header, header.operations, response);
    for operation in operations {
        count(&door.counters.requests, operation.op as usize);
        count(&door.counters.responses, RpcStatus::Ok as usize);
        encode_operation(&Operation { value: operation.value, ..Operation::new(OpKind::Ping) }, response);
    }
    header
}

/// The header of a message, and its operations. One that is none has a header that names nobody.
fn reparse(message: &[u8]) -> (MessageHeader, impl Iterator<Item = Operation<'_>>) {
    let decoded = MessageHeader::decode(message).ok();
    let header = decoded.as_ref().map_or(EMPTY_HEADER, |(header, _)| *header);
    (header, decoded.into_iter().flat_map(|(_, operations)| operations.flatten()))
}

/// Adds one to a counter of a family.
pub(super) fn count(family: &[SingleWriterCounter], index: usize) {
    if let Some(counter) = family.get(index) {
        counter.add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surveyed(operations: &[Operation<'_>]) -> OperationSummary {
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
        for (operations, keys, requests) in [
            (&[range(1)][..], 1, 1),
            (&[Operation::range(1, b"", b"", 7, true)], 7, 7),
            (&[range(1_000)], 1_000, 1_000),
            // No answer has more; and what is no limit is refused, which is a request as well.
            (&[range(10_000)], 1_000, 1_000),
            (&[Operation { number: u64::MAX, ..range(1) }], 1_000, 1_000),
            (&[range(0)], 0, 1),
            (&[range(1); 256], 256, 256),
            (&[get, range(5), multiget, get], 8, 10),
            (&[range(600), range(600)], 1_200, 1_200),
        ] {
            let survey = surveyed(operations);
            let counted = (survey.keys, survey.requests(operations.len() as u16));
            assert_eq!(counted, (keys, requests), "{operations:?}");
            assert!(survey.repeatable && !survey.only_pings && !survey.invokes && !survey.hello);
        }
        assert!(!surveyed(&[range(1), Operation::put(1, b"k", b"v")]).repeatable);
    }
}
