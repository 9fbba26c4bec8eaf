//! The door: which messages may be run. Parses all of a message, finds its tenant, authenticates its session, and keeps
//! out what was run before. Whatever is not let in is answered with the reason, and counted.

use std::cell::Cell;
use std::sync::Arc;

use sandstorm_net::once::Admit;
use sandstorm_net::r2p2::{Peer, Request};
use sandstorm_net::rpc::{Malformed, MessageHeader, Op, Operation, Operations, Status, encode_operation};
use sandstorm_net::seal::session_of;
use sandstorm_net::share::Share;

use super::assembly::{Origin, start_response};
use super::plain::{self, Ranges};
use super::port::Desk;
use super::queries::Mark;
use super::refusals;
use crate::limits::MULTIGET_KEYS;
use crate::metrics::{Counter, WorkerCounters, malformed_index};
use crate::tenants::{Snapshot, TenantView};

/// A message that may be run.
pub(super) struct Admitted<'d> {
    pub(super) origin: Origin<Peer>,
    pub(super) view: &'d Arc<TenantView>,
    pub(super) operations: Operations<'d>,
    /// Whether an operation of it is an invocation.
    pub(super) invokes: bool,
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
pub(super) enum Verdict<'d> {
    /// Run it.
    Run(Admitted<'d>),
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
    pub(super) counters: &'w WorkerCounters,
    pub(super) worker: usize,
    pub(super) now_us: u64,
    /// Whether other machines may use closed tenants' data without a sealed session.
    pub(super) allow_plaintext: bool,
}

/// What a plain message from another machine is told.
const SEAL_REQUIRED: &str = "from another machine this tenant's data are reached in a sealed session only: use a client that \
    seals (all do by default), or have the operator say --allow-plaintext";

/// A message that asks for nothing has no answer to wait for.
const NONE: Malformed = Malformed::Operations(0);

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
    /// How many requests a message of `operations` counts as: each key of a multiget and each record that a range may answer is
    /// one, as if it were asked for alone.
    fn requests(&self, operations: u16) -> u32 {
        let others = u64::from(operations).saturating_sub(self.multigets);
        u32::try_from(others + self.keys.max(self.multigets)).unwrap_or(u32::MAX)
    }
}

fn survey(operations: &Operations<'_>) -> Result<Survey, Malformed> {
    let mut survey = Survey { harmless: true, invokes: false, pings: true, hello: false, keys: 0, multigets: 0 };
    for operation in operations.clone() {
        let operation = operation?;
        let op = operation.op;
        if op == Op::MultiGet {
            survey.keys = survey.keys.saturating_add(operation.number);
            survey.multigets += 1;
        }
        if op == Op::Range {
            survey.keys = survey.keys.saturating_add(u64::from(operation.number as u32).min(MULTIGET_KEYS));
            survey.multigets += 1;
        }
        survey.pings &= op == Op::Ping;
        survey.invokes |= op == Op::Invoke;
        survey.hello |= op == Op::Hello;
        survey.harmless &= matches!(op, Op::Ping | Op::Hello | Op::Get | Op::MultiGet | Op::Range);
    }
    Ok(survey)
}

/// Decides over one message. A refusal's response is written to `response`.
pub(super) fn admit<'d>(
    door: &Door<'d, '_>,
    request: &'d Request<'_>,
    desk: &mut Desk,
    response: &mut Vec<u8>,
) -> Verdict<'d> {
    door.counters.messages.add(1);
    let (peer, request_id) = (request.peer, request.request_id);
    let asked = refusals::asked(&request.message);
    let checked = MessageHeader::decode(&request.message)
        .and_then(|(header, operations)| if header.operations > 0 { Ok((header, operations)) } else { Err(NONE) })
        .and_then(|(header, operations)| Ok((header, survey(&operations)?, operations)));
    let (header, survey, operations) = match checked {
        Ok(checked) => checked,
        Err(malformed) => {
            let header = refuse_malformed(door, &request.message, asked, malformed, response);
            let origin = Origin { peer, request_id, header, remembered: false, query: Mark::NONE };
            return refused(door, origin, request, desk, response);
        }
    };
    let origin = Origin { peer, request_id, header, remembered: false, query: Mark::NONE };
    let Some(view) = door.snapshot.tenant(header.tenant) else {
        if survey.pings && refusals::is_short(&request.message) {
            pong(door, &origin, operations, response);
        } else if survey.pings {
            let text = refusals::fitting(refusals::LONG_PING, asked, refusals::operations(header.operations));
            refuse(door, &origin, operations, Status::TooLarge, text, response);
        } else {
            let text = "no tenant has this id; `sandstorm tenant list` shows those there are";
            let text = refusals::fitting(text, asked, refusals::operations(header.operations));
            refuse(door, &origin, operations, Status::UnknownTenant, text, response);
        }
        return refused(door, origin, request, desk, response);
    };
    if let Err((status, text)) = authenticate(door, view, &origin, &operations, desk) {
        let text = refusals::fitting(text, asked, refusals::operations(header.operations));
        refuse(door, &origin, operations, status, text, response);
        return refused(door, origin, request, desk, response);
    }
    if survey.hello && session_of(peer).is_none() {
        desk.known.note(peer, header.tenant, door.now_us);
    }
    admit_of_tenant(door, view, (origin, survey, operations), desk, response)
}

/// Decides over a message of somebody who may act for the tenant.
fn admit_of_tenant<'d>(
    door: &Door<'d, '_>,
    view: &'d Arc<TenantView>,
    (mut origin, survey, operations): (Origin<Peer>, Survey, Operations<'d>),
    desk: &mut Desk,
    response: &mut Vec<u8>,
) -> Verdict<'d> {
    let (peer, header) = (origin.peer, origin.header);
    if survey.keys > MULTIGET_KEYS {
        let text = format!("the multigets and ranges of one message have at most {MULTIGET_KEYS} keys; ask in several");
        refuse(door, &origin, operations, Status::TooLarge, &text, response);
        return Verdict::Answer(origin);
    }
    let requests = survey.requests(header.operations);
    let within_rate = view.tenant.admit_requests(door.now_us.saturating_mul(1000), requests);
    if survey.invokes {
        origin.query = desk.assembly.queries.mark(&peer, origin.request_id, &header);
        if desk.assembly.queries.waits(origin.query) {
            // Repeats are requests, too; who sends too many of them is dropped early.
            desk.refused += u64::from(!within_rate);
            door.counters.duplicates.add(1);
            return Verdict::Silence;
        }
    }
    // Before it is refused: what has run must not be said not to have.
    origin.remembered = !survey.harmless && !header.is_idempotent();
    if origin.remembered
        && let Some(verdict) = run_before(door, &mut origin, &operations, desk, response)
    {
        return verdict;
    }
    if !within_rate {
        if std::mem::take(&mut origin.remembered) {
            desk.once.cancel(peer, header.tenant, header.session, header.sequence);
        }
        view.tenant.usage.worker(door.worker).over_quota.add(u64::from(header.operations));
        desk.refused += 1;
        refuse(
            door,
            &origin,
            operations,
            Status::OverQuota,
            "quota requests_per_s: too many requests a second; operations count one by one, each key of a multiget, and each that a range may find",
            response,
        );
        return Verdict::Answer(origin);
    }
    view.tenant.usage.worker(door.worker).requests.add(u64::from(header.operations));
    let ranges = Ranges::new();
    let (packet, is_stored) = (None, Cell::new(false));
    Verdict::Run(Admitted { origin, view, operations, invokes: survey.invokes, requests, ranges, packet, is_stored })
}

/// What becomes of a message that must run once and was here before; `None` if it was not.
fn run_before<'d>(
    door: &Door<'d, '_>,
    origin: &mut Origin<Peer>,
    operations: &Operations<'d>,
    desk: &mut Desk,
    response: &mut Vec<u8>,
) -> Option<Verdict<'d>> {
    let header = &origin.header;
    let (session, sequence, acked) = (header.session, header.sequence, header.acked);
    match desk.once.admit(door.now_us, origin.peer, header.tenant, session, sequence, acked) {
        Admit::Run => return None,
        Admit::Running => {
            door.counters.duplicates.add(1);
            return Some(Verdict::Silence);
        }
        Admit::Answered(answer) => {
            response.clear();
            response.extend_from_slice(answer);
            door.counters.duplicates.add(1);
            origin.remembered = false;
        }
        Admit::Stale => {
            origin.remembered = false;
            let text = "the request is too old to tell whether it ran; read before you repeat it";
            refuse(door, origin, operations.clone(), Status::Stale, text, response);
        }
    }
    Some(Verdict::Answer(*origin))
}

/// What becomes of a refusal to somebody who has not shown who it is. Nothing is kept of its request: a repeat has to bring all of it again, and
/// is refused, counted and bounded as this one.
fn refused<'d>(
    door: &Door<'d, '_>,
    origin: Origin<Peer>,
    request: &Request<'_>,
    desk: &mut Desk,
    response: &[u8],
) -> Verdict<'d> {
    desk.refused += 1;
    desk.endpoint.forget(request);
    if desk.refusals.may_leave(door.now_us, response.len(), refusals::asked(&request.message)) {
        Verdict::Refuse(origin)
    } else {
        Verdict::Silence
    }
}

/// Whether the session may act for the tenant: the tenant is open, the session has shown its token, or shows it now. A sealed
/// session has shown it by its handshake, for its own tenant alone; it says hello all the same, so that a client learns
/// of a server that restarted. From other machines a closed tenant's data are reached in no other way.
fn authenticate(
    door: &Door<'_, '_>,
    view: &TenantView,
    origin: &Origin<Peer>,
    operations: &Operations<'_>,
    desk: &mut Desk,
) -> Result<(), (Status, &'static str)> {
    let (tenant, session, peer) = (&view.tenant, origin.header.session, origin.peer);
    let no = |text| Err((Status::Unauthenticated, text));
    let sealed = session_of(peer);
    if sealed.is_some_and(|(of, _)| of != tenant.id) {
        return no("a sealed session acts for the tenant alone whose token it was opened with");
    }
    if tenant.open {
        return Ok(());
    }
    if sealed.is_none() && !door.allow_plaintext && !peer.ip().to_canonical().is_loopback() {
        return Err((Status::SealRequired, SEAL_REQUIRED));
    }
    let credential = match operations.clone().next() {
        Some(Ok(Operation { op: Op::Hello, .. })) if sealed.is_some() => {
            let opened_with = desk.seal.credential(peer);
            tenant.credentials().find(|credential| Some(*credential) == opened_with)
        }
        Some(Ok(Operation { op: Op::Hello, value: token, .. })) => tenant.credential_of(token),
        _ if tenant.credentials().any(|credential| desk.sessions.allows(peer, session, tenant.id, credential)) => {
            return Ok(());
        }
        _ => return no("the session has not shown the tenant's token: send a hello first"),
    };
    let Some(credential) = credential else { return no("this is not the tenant's token") };
    desk.sessions.admit(peer, session, tenant.id, credential);
    Ok(())
}

/// Answers a message that is none: with its header if it has one, and one operation that says what is wrong.
fn refuse_malformed(
    door: &Door<'_, '_>,
    message: &[u8],
    asked: usize,
    malformed: Malformed,
    response: &mut Vec<u8>,
) -> MessageHeader {
    let status = if matches!(malformed, Malformed::Version(_)) { Status::Version } else { Status::Malformed };
    let nameless = MessageHeader { flags: 0, operations: 1, tenant: 0, session: 0, sequence: 0, acked: 0 };
    let header = MessageHeader::decode(message).map_or(nameless, |(header, _)| header);
    start_response(&header, 1, response);
    let text = malformed.to_string();
    plain::refuse(&Operation::new(Op::Ping), status, refusals::fitting(&text, asked, 1), response);
    count(&door.counters.malformed, malformed_index(&malformed));
    count(&door.counters.responses, status as usize);
    header
}

/// Answers every operation of a message with one status, or one for all if they are many; the first says why.
fn refuse(
    door: &Door<'_, '_>,
    origin: &Origin<Peer>,
    operations: Operations<'_>,
    status: Status,
    mut text: &str,
    response: &mut Vec<u8>,
) {
    let answered = refusals::operations(origin.header.operations);
    start_response(&origin.header, answered, response);
    for operation in operations.flatten().take(usize::from(answered)) {
        count(&door.counters.requests, operation.op as usize);
        count(&door.counters.responses, status as usize);
        plain::refuse(&operation, status, std::mem::take(&mut text), response);
    }
}

/// Answers a message of pings.
fn pong(door: &Door<'_, '_>, origin: &Origin<Peer>, operations: Operations<'_>, response: &mut Vec<u8>) {
    start_response(&origin.header, origin.header.operations, response);
    for operation in operations.flatten() {
        count(&door.counters.requests, operation.op as usize);
        count(&door.counters.responses, Status::Ok as usize);
        encode_operation(&Operation { value: operation.value, ..Operation::new(Op::Ping) }, response);
    }
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
        let (_, operations) = MessageHeader::decode(&message).expect("a message");
        survey(&operations).expect("well-formed operations")
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
