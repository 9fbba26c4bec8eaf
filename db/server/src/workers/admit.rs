//! The door: which messages may be run. Parses all of a message, finds its tenant, authenticates its session, and keeps
//! out what was run before. Whatever is not let in is answered with the reason, and counted.

use std::cell::Cell;
use std::sync::Arc;

use arrayvec::ArrayVec;
use sandstorm_net::once::{Admit, home_of, start_of};
use sandstorm_net::r2p2::{Peer, Request};
use sandstorm_net::rpc::{
    HELLO_BINDS, MESSAGE_HEADER_LEN, Malformed, MessageHeader, NUMBER_AT, Op, Operation, Operations, STALE_FORMER,
    Status, encode_operation,
};
use sandstorm_net::seal::session_of;
use sandstorm_net::share::Share;

use super::assembly::{Origin, Ticket, start_response};
use super::plain::{self, Ranges};
use super::port::Desk;
use super::queries::Mark;
use super::refusals;
use crate::limits::BURST;
use sandstorm_accounts::TokenHash;
use sandstorm_catalog::{Snapshot, TenantView};
use sandstorm_dialects::limits::MULTIGET_KEYS;
use sandstorm_metrics::{Counter, WorkerCounters, malformed_index};

/// A request as it came.
pub(super) struct Incoming<'p> {
    /// Which share of the part it is of.
    pub(super) share: u8,
    pub(super) request: Request<'p>,
    /// The memory of its packet, if that stayed where it came.
    pub(super) packet: Option<&'p Share>,
}

/// A message that may be run.
pub(super) struct Admitted<'d> {
    /// Which of the burst's messages it is.
    pub(super) number: usize,
    /// What its response waits for.
    pub(super) ticket: Option<Ticket>,
    pub(super) origin: Origin<Peer>,
    pub(super) view: &'d Arc<TenantView>,
    /// Its first operation, and the others.
    pub(super) first: Operation<'d>,
    pub(super) others: Operations<'d>,
    /// How many requests it counts as.
    pub(super) requests: u32,
    /// What its ranges have done.
    pub(super) ranges: Ranges,
    /// The memory of its packet, if that stayed where it came.
    pub(super) packet: Option<&'d Share>,
    /// Whether a value of it is stored there.
    pub(super) is_stored: Cell<bool>,
}

/// What becomes of a message at the door.
pub(super) enum Verdict {
    /// Run it: it stands at the end of the messages that may be run.
    Run,
    /// Do not: the response is written. It says why not, or what was answered when the message came before.
    Answer(Origin<Peer>),
    /// Do not, and say so to who has not shown who it is: the response is written.
    Refuse(Origin<Peer>),
    /// Do not: the message is being run, and its answer will come; or there were too many answers to strangers.
    Silence,
}

/// What the door knows.
pub(super) struct Door<'d, 'w> {
    pub(super) snapshot: &'d Snapshot,
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

impl<'d> Door<'d, '_> {
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
type Refused = (Status, &'static str);

/// What a plain message from another machine is told.
const SEAL_REQUIRED: Refused = (
    Status::SealRequired,
    "from another machine a closed tenant's data are reached in a sealed session only: use a client that seals (all do by \
     default), or have the operator say --allow-plaintext",
);
const ANOTHERS_SESSION: Refused =
    (Status::Unauthenticated, "a sealed session acts for the tenant alone whose token it was opened with");
const NO_HELLO: Refused = (
    Status::Unauthenticated,
    "the session has not shown the token of a tenant with this id: send a hello first, or check the id",
);
const NOT_THE_TOKEN: Refused = (Status::Unauthenticated, "no tenant has this id and this token: check both");

/// What whoever asks for something is told while the server is shutting down.
const SHUTTING_DOWN: &str = "the server is shutting down and did not run this; ask again when it is back";

/// A message that asks for nothing has no answer to wait for.
const NONE: Malformed = Malformed::Operations(0);

/// The header of what is no message.
const NAMELESS: MessageHeader = MessageHeader { flags: 0, operations: 1, tenant: 0, session: 0, sequence: 0, acked: 0 };

/// What a look over all operations of a message tells.
struct Survey {
    /// Nothing that would harm if it ran twice.
    harmless: bool,
    invokes: bool,
    /// Pings alone: no tenant is needed.
    pings: bool,
    /// The session presents a token.
    hello: bool,
    /// Keys of all its multigets, and records that its ranges ask for.
    keys: u64,
    /// Multigets and ranges.
    multigets: u64,
}

impl Survey {
    /// Looks at one more operation.
    #[inline]
    fn note(&mut self, op: Op, number: u64) {
        if op == Op::MultiGet {
            self.keys = self.keys.saturating_add(number);
            self.multigets += 1;
        }
        if op == Op::Range {
            self.keys = self.keys.saturating_add(u64::from(number as u32).min(MULTIGET_KEYS));
            self.multigets += 1;
        }
        self.pings &= op == Op::Ping;
        self.invokes |= op == Op::Invoke;
        self.hello |= op == Op::Hello;
        self.harmless &= matches!(op, Op::Ping | Op::Hello | Op::Get | Op::MultiGet | Op::Range);
    }

    /// How many requests a message of `operations` counts as: each key of a multiget and each record that a range may answer is
    /// one, as if it were asked for alone.
    fn requests(&self, operations: u16) -> u32 {
        let others = u64::from(operations).saturating_sub(self.multigets);
        u32::try_from(others + self.keys.max(self.multigets)).unwrap_or(u32::MAX)
    }
}

/// A message that is well-formed as a whole: its header, its first operation, the others, and what a look over all of them tells.
type Parsed<'d> = (MessageHeader, Operation<'d>, Operations<'d>, Survey);

/// Parses all of a message. In line, and what it finds is looked at by value alone: else all of it would be put together in memory, which took longer
/// than to parse it. What is not let in is parsed again to be refused.
#[inline(always)]
fn parse(message: &[u8]) -> Result<Parsed<'_>, Malformed> {
    let (header, mut others) = MessageHeader::decode(message)?;
    // Of no operations the count is at fault, whatever stands behind the header.
    if header.operations == 0 {
        return Err(NONE);
    }
    let first = others.next().ok_or(NONE)??;
    let mut survey = Survey { harmless: true, invokes: false, pings: true, hello: false, keys: 0, multigets: 0 };
    survey.note(first.op, first.number);
    for operation in others.clone() {
        let operation = operation?;
        survey.note(operation.op, operation.number);
    }
    Ok((header, first, others, survey))
}

/// Decides over one message. Who may be run is put at the end of `admitted`; a refusal's response is written to `response`.
#[inline(always)]
pub(super) fn admit<'d>(
    door: &Door<'d, '_>,
    (number, incoming): (usize, &'d Incoming<'_>),
    desk: &mut Desk,
    response: &mut Vec<u8>,
    admitted: &mut ArrayVec<Admitted<'d>, BURST>,
) -> Verdict {
    door.counters.messages.add(1);
    let request = &incoming.request;
    let (header, first, others, survey) = match parse(&request.message) {
        Ok(parsed) => parsed,
        Err(malformed) => return refuse_malformed(door, request, malformed, desk, response),
    };
    let Some(view) = door.tenant(header.tenant) else {
        return tenantless(door, request, (header, &first), survey.pings, desk, response);
    };
    if let Err(no) = authenticate(door, view, request.peer, &header, &first, desk) {
        return unauthenticated(door, request, no, desk, response);
    }
    if survey.hello {
        greet(door, request.peer, &header, desk);
    }
    if survey.keys > MULTIGET_KEYS {
        return too_many_keys(door, request, header, response);
    }
    let (invokes, requests) = (survey.invokes, survey.requests(header.operations));
    let within_rate = view.tenant.admit_requests(door.now_us.saturating_mul(1000), requests);
    // Before it is refused: what has run must not be said not to have.
    let remembered = !survey.harmless && !header.is_idempotent();
    if remembered && let Some(verdict) = run_before(door, request, header, desk, response) {
        return verdict;
    }
    let queries = &desk.assembly.queries;
    let is_query = invokes && !remembered;
    let query = if is_query { queries.mark(&request.peer, request.request_id, &header) } else { Mark::NONE };
    if queries.waits(query) {
        return asked_before(door, within_rate, desk);
    }
    if !within_rate || door.stops {
        return turn_away(door, view, request, header, (remembered, within_rate), desk, response);
    }
    view.tenant.usage.worker(door.worker).requests.add(u64::from(header.operations));
    let origin = Origin { peer: request.peer, request_id: request.request_id, header, remembered, query };
    let ticket = invokes.then(|| desk.assembly.open(origin, usize::from(header.operations)));
    let (packet, ranges, is_stored) = (incoming.packet, Ranges::new(), Cell::new(false));
    admitted.push(Admitted { number, ticket, origin, view, first, others, requests, ranges, packet, is_stored });
    Verdict::Run
}

/// A session that may act for its tenant says hello.
#[cold]
fn greet(door: &Door<'_, '_>, peer: Peer, header: &MessageHeader, desk: &mut Desk) {
    if session_of(peer).is_none() {
        desk.known.note(peer, header.tenant, door.now_us);
    }
    desk.once.greet(door.now_us, peer, header.tenant, header.session, header.sequence);
}

/// Whom to answer what is not let in.
fn origin(request: &Request<'_>, header: MessageHeader) -> Origin<Peer> {
    let (peer, request_id) = (request.peer, request.request_id);
    Origin { peer, request_id, header, remembered: false, query: Mark::NONE }
}

/// Answers a message that is none: with its header if it has one, and one operation that says what is wrong.
#[cold]
fn refuse_malformed(
    door: &Door<'_, '_>,
    request: &Request<'_>,
    malformed: Malformed,
    desk: &mut Desk,
    response: &mut Vec<u8>,
) -> Verdict {
    let status = if matches!(malformed, Malformed::Version(_)) { Status::Version } else { Status::Malformed };
    let header = again(&request.message).0;
    start_response(&header, 1, response);
    let (text, asked) = (malformed.to_string(), refusals::asked(&request.message));
    plain::refuse(&Operation::new(Op::Ping), status, refusals::fitting(&text, asked, 1), response);
    count(&door.counters.malformed, malformed_index(&malformed));
    count(&door.counters.responses, status as usize);
    refused(door, header, request, desk, response)
}

/// What becomes of a message that names no tenant that there is. Pings need none, under the id 0, which is nobody's. All else is answered as a closed
/// tenant answers an unauthenticated sender, in the same words and after the same work: else ids could be tried until one is a tenant's.
#[cold]
fn tenantless(
    door: &Door<'_, '_>,
    request: &Request<'_>,
    (header, first): (MessageHeader, &Operation<'_>),
    pings: bool,
    desk: &mut Desk,
    response: &mut Vec<u8>,
) -> Verdict {
    let nameless = pings && header.tenant == NAMELESS.tenant;
    let header = if nameless && refusals::is_short(&request.message) {
        pong(door, &request.message, response)
    } else if nameless {
        refuse(door, request, Status::TooLarge, Text::Fitting(refusals::LONG_PING), response)
    } else {
        let no = match closed_to(door, header.tenant, request.peer) {
            Some(no) => no,
            None if first.op == Op::Hello => {
                TokenHash::refuse(first.value);
                NOT_THE_TOKEN
            }
            None => NO_HELLO,
        };
        return unauthenticated(door, request, no, desk, response);
    };
    refused(door, header, request, desk, response)
}

/// What becomes of a message of somebody who may not act for its tenant.
#[cold]
fn unauthenticated(
    door: &Door<'_, '_>,
    request: &Request<'_>,
    (status, text): Refused,
    desk: &mut Desk,
    response: &mut Vec<u8>,
) -> Verdict {
    let header = refuse(door, request, status, Text::Fitting(text), response);
    refused(door, header, request, desk, response)
}

/// What becomes of a message that asks for too many records.
#[cold]
fn too_many_keys(door: &Door<'_, '_>, request: &Request<'_>, header: MessageHeader, response: &mut Vec<u8>) -> Verdict {
    let text = format!("the multigets and ranges of one message have at most {MULTIGET_KEYS} keys; ask in several");
    refuse(door, request, Status::TooLarge, Text::Whole(&text), response);
    Verdict::Answer(origin(request, header))
}

/// What becomes of a message of a tenant that asks for too much, or while the server is shutting down.
#[cold]
fn turn_away(
    door: &Door<'_, '_>,
    view: &TenantView,
    request: &Request<'_>,
    header: MessageHeader,
    (remembered, within_rate): (bool, bool),
    desk: &mut Desk,
    response: &mut Vec<u8>,
) -> Verdict {
    if remembered {
        desk.once.cancel(request.peer, header.tenant, header.session, header.sequence);
    }
    if within_rate {
        refuse(door, request, Status::ShuttingDown, Text::Whole(SHUTTING_DOWN), response);
        return Verdict::Answer(origin(request, header));
    }
    view.tenant.usage.worker(door.worker).over_quota.add(u64::from(header.operations));
    desk.refused += 1;
    let text = "quota requests_per_s: too many requests a second; operations count one by one, each key of a multiget, and each that a range may find";
    refuse(door, request, Status::OverQuota, Text::Whole(text), response);
    Verdict::Answer(origin(request, header))
}

/// What becomes of a query that was here before and waits for its answer.
#[cold]
fn asked_before(door: &Door<'_, '_>, within_rate: bool, desk: &mut Desk) -> Verdict {
    // Repeats are requests, too; who sends too many of them is dropped early.
    desk.refused += u64::from(!within_rate);
    door.counters.duplicates.add(1);
    Verdict::Silence
}

/// What becomes of a message that must run once, if it was here before.
fn run_before(
    door: &Door<'_, '_>,
    request: &Request<'_>,
    header: MessageHeader,
    desk: &mut Desk,
    response: &mut Vec<u8>,
) -> Option<Verdict> {
    let (session, sequence, acked) = (header.session, header.sequence, header.acked);
    match desk.once.admit(door.now_us, request.peer, header.tenant, session, sequence, acked) {
        Admit::Run => return None,
        Admit::Running => {
            door.counters.duplicates.add(1);
            return Some(Verdict::Silence);
        }
        Admit::Answered(answer) => {
            response.clear();
            response.extend_from_slice(answer);
            door.counters.duplicates.add(1);
        }
        Admit::Stale => {
            let text = "the request is too old to tell whether it ran; read before you repeat it";
            refuse(door, request, Status::Stale, Text::Whole(text), response);
        }
        Admit::Former => {
            let text = "the session is of an earlier start of this server, which may have run the request; say hello in a new one";
            refuse(door, request, Status::Stale, Text::Whole(text), response);
            number_first(response, STALE_FORMER);
        }
    }
    Some(Verdict::Answer(origin(request, header)))
}

/// What becomes of a refusal to somebody who has not shown who it is. Nothing is kept of its request: a repeat has to bring all of it again, and
/// is refused, counted and bounded as this one.
fn refused(
    door: &Door<'_, '_>,
    header: MessageHeader,
    request: &Request<'_>,
    desk: &mut Desk,
    response: &[u8],
) -> Verdict {
    desk.refused += 1;
    desk.endpoint.forget(request);
    if desk.refusals.may_leave(door.now_us, response.len(), refusals::asked(&request.message)) {
        Verdict::Refuse(origin(request, header))
    } else {
        Verdict::Silence
    }
}

/// Whether the session may act for the tenant: the tenant is open, the session has shown its token, or shows it now. A sealed
/// session has shown it by its handshake, for its own tenant alone; it says hello all the same, so that a client learns
/// of a server that restarted. From other machines a closed tenant's data are reached in no other way.
#[inline]
fn authenticate(
    door: &Door<'_, '_>,
    view: &TenantView,
    peer: Peer,
    header: &MessageHeader,
    first: &Operation<'_>,
    desk: &mut Desk,
) -> Result<(), Refused> {
    let (tenant, session, token) = (&view.tenant, header.session, first.value);
    let sealed = session_of(peer);
    if tenant.open && sealed.is_none_or(|(of, _)| of == tenant.id) {
        return Ok(());
    }
    if let Some(no) = closed_to(door, tenant.id, peer) {
        return Err(no);
    }
    let is_bound = if first.op == Op::Hello { first.number == HELLO_BINDS } else { start_of(header.sequence) != 0 };
    let home = home_of(peer, is_bound);
    let credential = match first.op {
        Op::Hello if sealed.is_some() => {
            desk.seal.credential(peer).filter(|opened_with| tenant.has_credential(*opened_with))
        }
        Op::Hello => tenant.credential_of(token),
        _ if desk.sessions.shown(home, session, tenant.id).is_some_and(|shown| tenant.has_credential(shown)) => {
            if desk.sessions.heard(peer) {
                desk.known.note(peer, tenant.id, door.now_us);
            }
            return Ok(());
        }
        _ => return Err(NO_HELLO),
    };
    let Some(credential) = credential else { return Err(NOT_THE_TOKEN) };
    desk.sessions.admit((home, peer), session, tenant.id, credential);
    Ok(())
}

/// Why a sender cannot act for a closed tenant of that id whatever token it shows, if so. Whether there is such a tenant plays no part.
#[inline]
fn closed_to(door: &Door<'_, '_>, tenant: u32, peer: Peer) -> Option<Refused> {
    match session_of(peer) {
        Some((of, _)) => (of != tenant).then_some(ANOTHERS_SESSION),
        None => (!door.allow_plaintext && !peer.ip().to_canonical().is_loopback()).then_some(SEAL_REQUIRED),
    }
}

/// A refusal's text.
#[derive(Clone, Copy)]
enum Text<'t> {
    Whole(&'t str),
    /// As much of it as may be answered to who has not shown who it is.
    Fitting(&'t str),
}

/// Answers every operation of a well-formed message with one status, or one for all if they are many; the first says why. Tells its header.
#[cold]
fn refuse(
    door: &Door<'_, '_>,
    request: &Request<'_>,
    status: Status,
    text: Text<'_>,
    response: &mut Vec<u8>,
) -> MessageHeader {
    let (header, operations) = again(&request.message);
    let answered = refusals::operations(header.operations);
    let mut text = match text {
        Text::Whole(text) => text,
        Text::Fitting(text) => refusals::fitting(text, refusals::asked(&request.message), answered),
    };
    start_response(&header, answered, response);
    for operation in operations.take(usize::from(answered)) {
        count(&door.counters.requests, operation.op as usize);
        count(&door.counters.responses, status as usize);
        plain::refuse(&operation, status, std::mem::take(&mut text), response);
    }
    header
}

/// Gives a number to the first operation of a response.
fn number_first(response: &mut [u8], number: u64) {
    if let Some(place) = response.get_mut(MESSAGE_HEADER_LEN + NUMBER_AT..).and_then(<[u8]>::first_chunk_mut) {
        *place = number.to_le_bytes();
    }
}

/// Answers a message of pings. Tells its header.
#[cold]
fn pong(door: &Door<'_, '_>, message: &[u8], response: &mut Vec<u8>) -> MessageHeader {
    let (header, operations) = again(message);
    start_response(&header, header.operations, response);
    for operation in operations {
        count(&door.counters.requests, operation.op as usize);
        count(&door.counters.responses, Status::Ok as usize);
        encode_operation(&Operation { value: operation.value, ..Operation::new(Op::Ping) }, response);
    }
    header
}

/// The header of a message, and its operations. One that is none has a header that names nobody.
fn again(message: &[u8]) -> (MessageHeader, impl Iterator<Item = Operation<'_>>) {
    let decoded = MessageHeader::decode(message).ok();
    let header = decoded.as_ref().map_or(NAMELESS, |(header, _)| *header);
    (header, decoded.into_iter().flat_map(|(_, operations)| operations.flatten()))
}

/// Adds one to a counter of a family.
pub(super) fn count(family: &[Counter], index: usize) {
    if let Some(counter) = family.get(index) {
        counter.add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surveyed(operations: &[Operation<'_>]) -> Survey {
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
            assert!(survey.harmless && !survey.pings && !survey.invokes && !survey.hello);
        }
        assert!(!surveyed(&[range(1), Operation::put(1, b"k", b"v")]).harmless);
    }
}
