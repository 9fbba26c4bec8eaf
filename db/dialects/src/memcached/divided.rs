//! Requests for keys of several servers of a cluster. What is this server's runs here, the rest is forwarded, and the
//! answers leave in the order of the requests.
//!
//! A *run* is what is forwarded at a time. It begins with a request for a key of another server. If that one only
//! reads, those behind it go along as long as they only read, for keys of any server; this server's are run meanwhile.
//! Else those go along whose keys the same server has: it runs them in their order. So no write overtakes another, and
//! a multiget of many keys asks each server once. The input of a run is kept until the answers are there.

use arrayvec::ArrayVec;
use sandstorm_net::forwarding::{ForwardedAnswer, ForwardedBatch, ForwardedCommand};
use sandstorm_net::memcached::binary::BinaryResponseHeader;
use sandstorm_net::memcached::text::{decode_base64, push_number};
use sandstorm_net::memcached::{BAD_FORMAT, MetaCommand, TextRequest};
use sandstorm_net::slots::slot_of;

use super::answers::{WRONG_SERVER, push_line};
use super::binary::refusal::push_refusal;
use super::context::MemcachedContext;
use super::{BatchEnd, InputState, MemcachedSession, run_plan, should_yield};
use crate::NextAction;
use crate::cold_command::ColdCommand;
use crate::limits::protocols::{ANSWERS_FULL_BYTES, BATCH, FORWARDED_RUN_BYTES, FORWARDED_WORK};
use sandstorm_catalog::TableEntry;

/// Where a request is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestPlace {
    /// Here. Whether it reads one record and nothing else.
    Here { only_reads: bool },
    /// At the owner of this slot. Whether it may change something.
    Elsewhere { slot: u16, changes: bool },
}

impl RequestPlace {
    fn is_elsewhere(self) -> bool {
        matches!(self, RequestPlace::Elsewhere { .. })
    }

    /// The place of a request for a key.
    pub(super) fn of_key(table: &TableEntry, key: &[u8], changes: bool) -> RequestPlace {
        match table.table.owns(key) {
            true => RequestPlace::Here { only_reads: !changes },
            false => RequestPlace::Elsewhere { slot: slot_of(key), changes },
        }
    }

    /// The place of a request without a key.
    pub(super) const WITHOUT_KEY: RequestPlace = RequestPlace::Here { only_reads: false };
}

/// The place of a request of the text protocol.
pub(super) fn place_of_request(table: &TableEntry, request: &TextRequest<'_>) -> RequestPlace {
    let in_base64 = |key: &[u8], changes| {
        let mut buffer = [0; sandstorm_net::memcached::MAX_KEY_LEN];
        let key = decode_base64(key, &mut buffer);
        key.map_or(RequestPlace::WITHOUT_KEY, |key| RequestPlace::of_key(table, key, changes))
    };
    match request {
        TextRequest::Get { key, exptime, .. } => RequestPlace::of_key(table, key, exptime.is_some()),
        TextRequest::TooLarge { key, .. }
        | TextRequest::Delete { key, .. }
        | TextRequest::Arithmetic { key, .. }
        | TextRequest::Touch { key, .. }
        | TextRequest::MetaTooLarge { key, base64: false } => RequestPlace::of_key(table, key, true),
        TextRequest::Store(store) => RequestPlace::of_key(table, store.key, true),
        TextRequest::MetaTooLarge { key, base64: true } => in_base64(key, true),
        TextRequest::Meta(meta) => {
            // A get of a stale record changes it: one client is told to renew it, and the others that one was. Run
            // again it would tell all of them so.
            let changes = meta.verb != MetaCommand::Debug;
            match meta.flags.base64 {
                true => in_base64(meta.key, changes),
                false => RequestPlace::of_key(table, meta.key, changes),
            }
        }
        TextRequest::GetMany { .. }
        | TextRequest::FlushAll { .. }
        | TextRequest::Stats(_)
        | TextRequest::Version
        | TextRequest::Noop { .. }
        | TextRequest::Quit
        | TextRequest::MetaNoop
        | TextRequest::Invalid { .. } => RequestPlace::WITHOUT_KEY,
    }
}

/// How a request of the text protocol is refused.
pub(super) fn refusal_of_request(request: &TextRequest<'_>) -> ForwardRefusal {
    let noreply = match request {
        TextRequest::Store(store) => store.noreply,
        TextRequest::TooLarge { noreply, .. }
        | TextRequest::Delete { noreply, .. }
        | TextRequest::Arithmetic { noreply, .. }
        | TextRequest::Touch { noreply, .. } => *noreply,
        _ => false,
    };
    ForwardRefusal::Text { noreply }
}

/// How a request is refused that could not be forwarded.
#[derive(Clone, Copy, Debug)]
pub(super) enum ForwardRefusal {
    /// By a line, if an answer is wanted.
    Text { noreply: bool },
    /// By a frame.
    Binary { opcode: u8, opaque: u32 },
}

impl ForwardRefusal {
    fn push(self, text: &str, out: &mut Vec<u8>) {
        match self {
            ForwardRefusal::Text { noreply: true } => {}
            ForwardRefusal::Text { noreply: false } => push_line(text, out),
            ForwardRefusal::Binary { opcode, opaque } => {
                use sandstorm_net::memcached::binary::BinaryStatus;
                let status = BinaryStatus::OutOfMemory;
                let header = BinaryResponseHeader { opcode, opaque, status, cas: 0, extras: b"", key: b"" };
                push_refusal(header, text, out);
            }
        }
    }
}

/// A part of a run's answer.
#[derive(Debug)]
enum AnswerPart {
    /// What was answered here.
    Here(Vec<u8>),
    /// The same, and it ends the list of a multiget.
    ListError(Vec<u8>),
    /// What another server answers.
    Elsewhere(ForwardRefusal),
}

/// The requests that are with other servers, or were, and those between them.
#[derive(Debug)]
pub(super) struct ForwardRun {
    /// Each with its end in the input.
    parts: Vec<(AnswerPart, usize)>,
    /// Bytes of the commands that were sent.
    bytes: usize,
    /// Whether they are keys of one multiget.
    is_list: bool,
    /// What follows all of them in the input, the bytes up to there, and the line that ends the answers.
    after: InputState,
    used: usize,
    tail: Option<&'static str>,
    /// Once the answers are there: the bytes of the input that are done with.
    answered: Option<usize>,
}

impl ForwardRun {
    pub(super) fn used_bytes(&self) -> usize {
        let here = self.parts.iter().map(|(part, _)| match part {
            AnswerPart::Here(bytes) | AnswerPart::ListError(bytes) => bytes.capacity(),
            AnswerPart::Elsewhere(_) => 0,
        });
        self.bytes + here.sum::<usize>()
    }
}

/// The commands of a batch, and what ended it.
pub(super) struct KeyedCommands<'b> {
    pub(super) table: &'b TableEntry,
    pub(super) input: &'b [u8],
    pub(super) end: &'b BatchEnd,
}

/// The places of the requests of a batch.
type Places = ArrayVec<RequestPlace, BATCH>;

/// What is collected for a run.
struct CollectedCommands {
    parts: Vec<(AnswerPart, usize)>,
    commands: Vec<ForwardedCommand>,
    /// Whether they are run one after the other.
    is_ordered: bool,
}

impl MemcachedSession {
    /// Runs a batch that may have requests for keys of other servers. `None`: it has none.
    pub(super) fn run_divided<R>(
        &mut self,
        work: &MemcachedContext<'_>,
        (commands, plan): (&KeyedCommands<'_>, &[(R, u64, usize)]),
        out: &mut Vec<u8>,
        runner: (impl Fn(&R, u64, &mut Vec<u8>), impl Fn(&R, &str, &mut Vec<u8>), impl for<'r> Fn(&'r R) -> &'r [u8]),
        (place, refusal): (impl Fn(&TableEntry, &R) -> RequestPlace, impl Fn(&R) -> ForwardRefusal),
    ) -> Option<(usize, Option<NextAction>)> {
        let KeyedCommands { table, input, end } = commands;
        let places: Places = plan.iter().map(|(request, ..)| place(table, request)).collect();
        let first = places.iter().position(|place| place.is_elsewhere())?;
        if first > 0 {
            // What is before it has to be answered before.
            let used = plan[first - 1].2;
            return Some(match run_plan(work, &plan[..first], &mut self.cold, out, runner) {
                Some((ran, next)) => (ran, Some(next)),
                None => (used, None),
            });
        }
        if out.len() > work.begun && should_yield(work, out) {
            return Some((0, Some(NextAction::Yield)));
        }
        let (run, ..) = runner;
        let mut begins = 0;
        let collected = collect((work, &mut self.cold), table, (plan, &places), |request, hash, end| {
            let bytes = &input[std::mem::replace(&mut begins, end)..end];
            match hash {
                None => CollectedPart::Elsewhere(bytes.to_vec(), refusal(request)),
                Some(hash) => {
                    let mut answer = Vec::new();
                    run(request, hash, &mut answer);
                    CollectedPart::Here(answer, true)
                }
            }
        });
        let count = collected.parts.len();
        let after = match end {
            BatchEnd::Switch(skips @ InputState::SkipBytes(_)) if count == plan.len() => *skips,
            _ => InputState::Requests,
        };
        let used = plan[count - 1].2;
        Some((0, Some(self.forward(work, table, collected, (false, after, used, None)))))
    }

    /// The same for the keys of a multiget, which have led to this state of the session. If the run has all of them,
    /// the answer ends as that says; else the state is `before` again.
    pub(super) fn divided_keys(
        &mut self,
        work: &MemcachedContext<'_>,
        table: &TableEntry,
        batch: &[(&[u8], u64, usize)],
        (cas, exptime, before): (bool, Option<i32>, InputState),
        used: usize,
        out: &mut Vec<u8>,
    ) -> Option<(usize, Option<NextAction>)> {
        let places = batch.iter().map(|(key, ..)| RequestPlace::of_key(table, key, exptime.is_some()));
        let places: Places = places.collect();
        let first = places.iter().position(|place| place.is_elsewhere())?;
        if first > 0 && exptime.is_some() {
            let ended = self.run_keys(work, &batch[..first], (cas, exptime, before), out);
            if ended.is_none() {
                self.state = before;
            }
            return Some(ended.unwrap_or((batch[first - 1].2, None)));
        }
        let after = std::mem::replace(&mut self.state, before);
        if out.len() > work.begun && should_yield(work, out) {
            return Some((0, Some(NextAction::Yield)));
        }
        let collected = collect((work, &mut self.cold), table, (batch, &places), |key, hash, _| match hash {
            None => CollectedPart::Elsewhere(get_command(key, cas, exptime), ForwardRefusal::Text { noreply: false }),
            Some(hash) => {
                let mut answer = Vec::new();
                let goes_on = work.get(key, hash, cas, exptime, &mut answer);
                CollectedPart::Here(answer, goes_on)
            }
        });
        let count = collected.parts.len();
        if collected.commands.is_empty() {
            // One of those before it is not in memory, or is refused: they are run as ever.
            let ended = self.run_keys(work, &batch[..first], (cas, exptime, before), out);
            return Some(ended.unwrap_or((batch[first - 1].2, None)));
        }
        let rest = match after {
            _ if count < batch.len() => (true, before, batch[count - 1].2, None),
            InputState::Requests => (true, after, used, Some("END")),
            InputState::SkipLine => (true, after, used, Some(BAD_FORMAT)),
            _ => (true, after, used, None),
        };
        Some((0, Some(self.forward(work, table, collected, rest))))
    }

    /// Notes a run, and returns what is to be done with it.
    fn forward(
        &mut self,
        work: &MemcachedContext<'_>,
        table: &TableEntry,
        collected: CollectedCommands,
        (is_list, after, used, tail): (bool, InputState, usize, Option<&'static str>),
    ) -> NextAction {
        let CollectedCommands { parts, commands, is_ordered } = collected;
        work.context.work(FORWARDED_WORK);
        let bytes = commands.iter().map(|command| command.bytes.capacity()).sum();
        self.forwarded = Some(Box::new(ForwardRun { parts, bytes, is_list, after, used, tail, answered: None }));
        NextAction::Forward(Box::new(ForwardedBatch {
            tenant: work.view.map_or(0, |view| view.tenant.id),
            table: table.id,
            serial: table.serial(),
            is_binary: self.binary,
            is_ordered,
            is_datagram: false,
            commands,
        }))
    }

    /// Appends the answers of a run, now that those of the other servers are there. Late answers, and those given up
    /// for their length, are asked for again by the next turn.
    pub(crate) fn forwarded(&mut self, answers: Vec<ForwardedAnswer>, out: &mut Vec<u8>) {
        let Some(run) = &mut self.forwarded else { return };
        let (mut answers, mut done, mut ended) = (answers.into_iter(), 0, true);
        for (part, end) in std::mem::take(&mut run.parts) {
            let goes_on = match part {
                AnswerPart::Here(bytes) => {
                    out.extend_from_slice(&bytes);
                    true
                }
                AnswerPart::ListError(bytes) => {
                    out.extend_from_slice(&bytes);
                    false
                }
                // There is one for each.
                AnswerPart::Elsewhere(refusal) => match answers.next().unwrap_or(ForwardedAnswer::Later) {
                    ForwardedAnswer::Answered(bytes) if run.is_list => {
                        let records = bytes.strip_suffix(b"END\r\n");
                        out.extend_from_slice(records.unwrap_or(&bytes));
                        records.is_some()
                    }
                    ForwardedAnswer::Answered(bytes) => {
                        out.extend_from_slice(&bytes);
                        true
                    }
                    ForwardedAnswer::Refused(text) => {
                        refusal.push(&text, out);
                        !run.is_list
                    }
                    ForwardedAnswer::Dropped => {
                        refusal.push(WRONG_SERVER, out);
                        !run.is_list
                    }
                    ForwardedAnswer::Later => {
                        ended = false;
                        break;
                    }
                },
            };
            done = end;
            if !goes_on {
                // An error is the answer to the whole line of a multiget.
                self.state = InputState::SkipLine;
                ended = false;
                break;
            }
        }
        if ended {
            run.tail.into_iter().for_each(|line| push_line(line, out));
            (self.state, done) = (run.after, run.used);
        }
        (run.answered, run.bytes) = (Some(done), 0);
    }

    /// The bytes of the input that a run has answered, if one has just done so.
    #[inline]
    pub(super) fn take_answered(&mut self) -> Option<usize> {
        self.forwarded.as_ref()?;
        self.forwarded.take().and_then(|run| run.answered).filter(|used| *used > 0)
    }

    /// The part of the input that is not answered.
    pub(crate) fn unanswered<'i>(&self, input: &'i [u8]) -> &'i [u8] {
        let answered = self.forwarded.as_ref().and_then(|run| run.answered).unwrap_or(0);
        input.get(answered..).unwrap_or_default()
    }
}

/// The decision on a request that is collected for a run.
enum CollectedPart {
    /// It was answered here; whether a list goes on behind it.
    Here(Vec<u8>, bool),
    /// It is sent, as these bytes.
    Elsewhere(Vec<u8>, ForwardRefusal),
}

/// Collects a run from the front of a plan. `part` runs a request whose hash it is given, and else says what is sent.
fn collect<R>(
    (work, cold): (&MemcachedContext<'_>, &mut ColdCommand),
    table: &TableEntry,
    (plan, places): (&[(R, u64, usize)], &[RequestPlace]),
    mut part: impl FnMut(&R, Option<u64>, usize) -> CollectedPart,
) -> CollectedCommands {
    let map = table.table.slots().map(|slots| slots.map()).unwrap_or_default();
    let owner = |slot| map.owner(slot).map(|server| &server.id);
    let first = places.iter().copied().find(|place| place.is_elsewhere());
    let first_changes = matches!(first, Some(RequestPlace::Elsewhere { changes: true, .. }));
    let goes_along = |place| match (place, first) {
        (RequestPlace::Here { only_reads }, _) => !first_changes && only_reads,
        (RequestPlace::Elsewhere { changes, .. }, _) if !first_changes => !changes,
        (RequestPlace::Elsewhere { slot, .. }, Some(RequestPlace::Elsewhere { slot: other, .. })) => {
            owner(slot) == owner(other)
        }
        _ => false,
    };
    let (mut collected, mut sent_bytes, mut here_bytes) =
        (CollectedCommands { parts: Vec::new(), commands: Vec::new(), is_ordered: first_changes }, 0, 0);
    for ((request, hash, end), place) in plan.iter().zip(places.iter().copied()) {
        if !goes_along(place) || sent_bytes >= FORWARDED_RUN_BYTES || here_bytes >= ANSWERS_FULL_BYTES {
            break;
        }
        match (part(request, (!place.is_elsewhere()).then_some(*hash), *end), place) {
            (CollectedPart::Elsewhere(bytes, refusal), RequestPlace::Elsewhere { slot, changes }) => {
                sent_bytes += bytes.len();
                collected.commands.push(ForwardedCommand { slot, changes, bytes });
                collected.parts.push((AnswerPart::Elsewhere(refusal), *end));
            }
            (CollectedPart::Here(answer, goes_on), _) => {
                if work.has_cold() || work.met_elsewhere.replace(false) {
                    // It waits for the disk, or has just gone: by the next turn.
                    drop(work.context.participant.shown().take_cold());
                    break;
                }
                // What comes behind it waits anew, and is not refused for what this one has met.
                let _answered = cold.settle(work.context.participant);
                here_bytes += answer.len();
                let answer = if goes_on { AnswerPart::Here(answer) } else { AnswerPart::ListError(answer) };
                collected.parts.push((answer, *end));
                if !goes_on {
                    break;
                }
            }
            (CollectedPart::Elsewhere(..), RequestPlace::Here { .. }) => break,
        }
    }
    collected
}

/// The get of one key of a multiget.
fn get_command(key: &[u8], cas: bool, exptime: Option<i32>) -> Vec<u8> {
    let mut command = Vec::with_capacity(key.len() + 24);
    command.extend_from_slice(if exptime.is_some() { b"gat" } else { b"get" });
    if cas {
        command.push(b's');
    }
    if let Some(exptime) = exptime {
        command.push(b' ');
        if exptime < 0 {
            command.push(b'-');
        }
        push_number(u64::from(exptime.unsigned_abs()), &mut command);
    }
    command.push(b' ');
    command.extend_from_slice(key);
    command.extend_from_slice(b"\r\n");
    command
}
