//! The memcached protocol on a tenant's tables.
//!
//! A [`MemcachedSession`] parses received bytes, one batch of requests at a time. The buckets and then the records of a
//! batch are prefetched before the first request is run. The keys of a multiget are taken from the line as they come,
//! so a line of a million keys takes no more memory than one of ten. `classic` and `meta` run text requests, `binary`
//! those of the binary protocol, `auth` authenticates, and `subjects` says what a slow one was about. The first byte
//! decides the protocol, as in memcached. `datagram` runs what comes over UDP. In a cluster, `divided` has the commands
//! for keys of other servers, and `peer` runs those that other servers send.

mod answers;
mod arithmetic;
mod auth;
mod binary;
mod classic;
mod context;
mod counting;
mod datagram;
mod divided;
mod expiry;
mod meta;
mod peer;
mod stats;
mod subjects;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrayvec::ArrayVec;
use sandstorm_net::memcached::{BAD_FORMAT, MAX_KEY_LEN, TextParse, TextRequest, parse};

use self::answers::{NO_TENANT, UNAUTHENTICATED};
use self::context::MemcachedContext;
pub use self::datagram::{ForwardedDatagram, SuspendedDatagram};
use self::divided::{ForwardRun, KeyedCommands};
pub use self::peer::PeerSession;
use super::{CommandContext, ConnectionIdentity, NextAction, PortService, UncertainAnswer};
use crate::cold_command::{ColdCommand, ColdOutcome};
use crate::first_command::FirstCommand;
use crate::limits::protocols::{ANSWERS_FULL_BYTES, BATCH, WRITTEN_AT_ONCE_BYTES};
use sandstorm_accounts::RequestSubject;
use sandstorm_catalog::TenantView;

/// The answer to a request while the server is shutting down.
pub const SHUTTING_DOWN: &str = "SERVER_ERROR shutting down";

/// The answer to commands that a datagram had for other servers of the cluster, and to those behind them, where it may
/// not wait any more.
pub const NOT_FORWARDED: &str =
    "SERVER_ERROR too much waits for other servers of the cluster: the command was not run; ask again";

/// The treatment of the next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputState {
    /// Requests are read.
    Requests,
    /// This many bytes are skipped.
    SkipBytes(u64),
    /// Words up to the end of the line are keys.
    Keys { cas: bool, exptime: Option<i32> },
    /// Words up to the end of the line are skipped: an error has been answered for one of them.
    SkipLine,
}

/// The state of one connection.
pub struct MemcachedSession {
    service: Arc<PortService>,
    identity: Option<ConnectionIdentity>,
    /// The name of the table, if the connection or its port chose one.
    table_name: Option<Box<str>>,
    /// The directory's generation when the table was looked up, and the table's id.
    table: (u64, u64),
    state: InputState,
    /// Wrong passwords.
    failures: u32,
    /// Whether any bytes have come.
    has_input: bool,
    /// Whether they were in the binary protocol.
    binary: bool,
    /// Whether SASL has begun.
    sasl_begun: bool,
    /// Whether it was counted among its tenant's connections.
    counted: bool,
    /// The waits of its next request for records on the disk.
    pub(crate) cold: ColdCommand,
    /// What the first request was about since the last answers were counted.
    first: FirstCommand,
    /// The commands that are with other servers, or were.
    forwarded: Option<Box<ForwardRun>>,
    /// The id of the table, if it was chosen by that.
    fixed_table: Option<u64>,
}

/// The end of a batch.
enum BatchEnd {
    /// The next request is not complete.
    NeedMore(usize),
    /// It is full.
    Full,
    /// The connection is to end.
    Close,
    /// The following bytes are no request.
    Switch(InputState),
    /// All bytes are used.
    Done,
}

impl MemcachedSession {
    /// A new session at a port.
    pub fn new(service: &Arc<PortService>) -> MemcachedSession {
        MemcachedSession {
            service: Arc::clone(service),
            identity: None,
            table_name: service.table.as_deref().map(Box::from),
            table: (u64::MAX, 0),
            state: InputState::Requests,
            failures: 0,
            has_input: false,
            binary: false,
            sasl_begun: false,
            counted: false,
            cold: ColdCommand::default(),
            first: FirstCommand::none("memcached"),
            forwarded: None,
            fixed_table: None,
        }
    }

    /// The identity that it acts for.
    pub fn identity(&self) -> Option<&ConnectionIdentity> {
        self.identity.as_ref()
    }

    /// See [`super::ProtocolSession::first_command`]; after a datagram, its first request.
    pub fn first_command(&self) -> RequestSubject {
        self.first.subject()
    }

    /// See [`super::ProtocolSession::begin_answers`].
    #[inline]
    pub(crate) fn begin_answers(&mut self) {
        self.first.begin();
    }

    /// See [`super::ProtocolSession::run`].
    pub(crate) fn run(&mut self, context: &CommandContext<'_>, input: &[u8], out: &mut Vec<u8>) -> (usize, NextAction) {
        if let Some(used) = self.take_answered() {
            return (used, NextAction::Yield);
        }
        if !self.has_input && !input.is_empty() {
            self.has_input = true;
            self.binary = input[0] == sandstorm_net::memcached::binary::MAGIC;
        }
        if self.identity.is_none() {
            self.identity = ConnectionIdentity::from_port(context.snapshot, &self.service);
            match &self.identity {
                Some(identity) => return (0, NextAction::HandOver(identity.tenant())),
                None if self.service.tenant.is_none() && self.binary => {
                    return self.run_unauthenticated_frame(context, input, out);
                }
                None if self.service.tenant.is_none() => return self.authenticate(context, input, out),
                None => {
                    if let Some(text) = self.service.missing_tenant(context.snapshot).filter(|_| !input.is_empty()) {
                        self.reply_closing(input, &format!("SERVER_ERROR {text}"), out);
                        return (input.len(), NextAction::Close);
                    }
                }
            }
        }
        let view = self.identity.as_ref().and_then(|identity| identity.view(context.snapshot));
        if view.is_none() && self.identity.is_some() {
            // The token was replaced, or the tenant was deleted.
            let by_token = self.service.tenant.is_none();
            let missing = self.service.missing_tenant(context.snapshot).map(|text| format!("SERVER_ERROR {text}"));
            let text = missing.as_deref().unwrap_or(if by_token { UNAUTHENTICATED } else { NO_TENANT });
            self.reply_closing(input, text, out);
            return (input.len(), NextAction::Close);
        }
        self.look_up_table(view, context);
        let by_token = self.service.tenant.is_none();
        let work = MemcachedContext::new(context, view.map(|view| &**view), self.table.1, by_token, out.len());
        let (used, next) = self.turn(&work, input, out);
        self.tally(&work, (used, out.len()), &next);
        (used, next)
    }

    /// Processes the input until it is used up or the session should yield.
    fn turn(&mut self, work: &MemcachedContext<'_>, input: &[u8], out: &mut Vec<u8>) -> (usize, NextAction) {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let (bytes, next) = match self.state {
                InputState::Requests if self.binary => self.frames(work, rest, out),
                InputState::Requests => self.batch(work, rest, out),
                InputState::SkipBytes(left) => self.skip(left, rest),
                InputState::Keys { cas, exptime } => self.keys(work, cas, exptime, rest, out),
                InputState::SkipLine => self.skip_line(rest),
            };
            used += bytes;
            match next {
                Some(next) => return (used, next),
                None if used == input.len() => return (used, NextAction::NeedMore(1)),
                None if should_yield(work, out) => return (used, NextAction::Yield),
                None => {}
            }
        }
    }

    /// Finds the table, if the directory has changed since the last time.
    fn look_up_table(&mut self, view: Option<&Arc<TenantView>>, context: &CommandContext<'_>) {
        let Some(view) = view else { return };
        let generation = context.snapshot.generation();
        if self.table.0 != generation {
            let named = self.table_name.as_deref();
            let id = match (self.fixed_table, named) {
                (Some(id), _) => Some(id),
                (None, Some(name)) => view.id_of(name),
                (None, None) => view.tables.keys().min().copied(),
            };
            self.table = (generation, id.unwrap_or(0));
        }
    }

    /// Reads a batch of requests, prefetches their records, and runs them.
    fn batch(&mut self, work: &MemcachedContext<'_>, input: &[u8], out: &mut Vec<u8>) -> (usize, Option<NextAction>) {
        // Each with its end.
        let mut plan: ArrayVec<(TextRequest<'_>, u64, usize), BATCH> = ArrayVec::new();
        let mut used = 0;
        let end = loop {
            if used == input.len() {
                break BatchEnd::Done;
            }
            if plan.is_full() {
                break BatchEnd::Full;
            }
            match parse(&input[used..], work.max_value()) {
                TextParse::Incomplete(needed) => break BatchEnd::NeedMore(needed),
                TextParse::Fatal => {
                    work.context.count_protocol_error();
                    break BatchEnd::Close;
                }
                TextParse::Request { request: TextRequest::GetMany { cas, exptime }, used: bytes, .. } => {
                    used += bytes;
                    break BatchEnd::Switch(InputState::Keys { cas, exptime });
                }
                TextParse::Request { request: TextRequest::Quit, used: bytes, .. } => {
                    used += bytes;
                    break BatchEnd::Close;
                }
                TextParse::Request { request, used: bytes, skip } => {
                    used += bytes;
                    let hash = work.prefetch_request(&request);
                    plan.push((request, hash, used));
                    if skip > 0 {
                        break BatchEnd::Switch(InputState::SkipBytes(skip));
                    }
                }
            }
        };
        if let Some((request, ..)) = plan.first() {
            self.first.note(|| subjects::subject_of_request(request, work.table_id()));
        }
        let refuse = |_: &TextRequest<'_>, text: &str, out: &mut Vec<u8>| answers::push_line(text, out);
        let run = |request: &TextRequest<'_>, hash: u64, out: &mut Vec<u8>| work.run(request, hash, out);
        let runner = (run, refuse, classic::needed_key);
        if let Some(table) = work.divided_table() {
            let kind = (divided::place_of_request, divided::refusal_of_request);
            let commands = KeyedCommands { table, input, end: &end };
            if let Some(ended) = self.run_divided(work, (&commands, &plan), out, runner, kind) {
                return ended;
            }
        }
        match run_plan(work, &plan, &mut self.cold, out, runner) {
            Some((ran, next)) => (ran, Some(next)),
            None => self.ended(end, used),
        }
    }

    /// Bytes that it uses beside the connection's buffers.
    pub fn used_bytes(&self) -> usize {
        self.forwarded.as_ref().map_or(0, |run| run.used_bytes())
    }

    /// Appends the last answer of a connection, whose right to act has ended or was never given.
    pub fn reply_closing(&self, input: &[u8], text: &str, out: &mut Vec<u8>) {
        match self.binary || input.first() == Some(&sandstorm_net::memcached::binary::MAGIC) {
            true => binary::push_closing(input, text, out),
            false => answers::push_line(text, out),
        }
    }

    /// The one answer in place of those that have waited in vain. A binary one would name a request: there is none, the
    /// connection just ends.
    pub fn not_durable(&self, uncertain: UncertainAnswer, out: &mut Vec<u8>) {
        if !self.binary {
            answers::push_line(&format!("SERVER_ERROR {}", uncertain.text()), out);
        }
    }

    /// The next action after a batch that was run whole.
    fn ended(&mut self, end: BatchEnd, used: usize) -> (usize, Option<NextAction>) {
        match end {
            BatchEnd::Done => (used, Some(NextAction::NeedMore(1))),
            BatchEnd::NeedMore(needed) => (used, Some(NextAction::NeedMore(needed))),
            BatchEnd::Full => (used, Some(NextAction::Yield)),
            BatchEnd::Close => (used, Some(NextAction::Close)),
            BatchEnd::Switch(state) => {
                self.state = state;
                (used, None)
            }
        }
    }

    fn skip(&mut self, left: u64, input: &[u8]) -> (usize, Option<NextAction>) {
        let bytes = usize::try_from(left).map_or(input.len(), |left| left.min(input.len()));
        let left = left - bytes as u64;
        self.state = if left == 0 { InputState::Requests } else { InputState::SkipBytes(left) };
        (bytes, None)
    }

    fn skip_line(&mut self, input: &[u8]) -> (usize, Option<NextAction>) {
        match input.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                self.state = InputState::Requests;
                (end + 1, None)
            }
            None => (input.len(), None),
        }
    }

    /// Answers the keys of a multiget, as many as have come, up to one batch.
    fn keys(
        &mut self,
        work: &MemcachedContext<'_>,
        cas: bool,
        exptime: Option<i32>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Option<NextAction>) {
        let mut batch: ArrayVec<(&[u8], u64, usize), BATCH> = ArrayVec::new();
        let mut used = 0;
        let before = self.state;
        let next = loop {
            if batch.is_full() {
                break None;
            }
            match next_key(&input[used..]) {
                KeyToken::Incomplete(blanks) => {
                    // Blanks are not kept: there may be any number of them.
                    used += blanks;
                    break Some(NextAction::NeedMore(input.len() - used + 1));
                }
                KeyToken::TooLong => {
                    self.state = InputState::SkipLine;
                    break None;
                }
                KeyToken::End(bytes) => {
                    used += bytes;
                    self.state = InputState::Requests;
                    break None;
                }
                KeyToken::Word(key, bytes) => {
                    used += bytes;
                    batch.push((key, work.prefetch_key(key), used));
                }
            }
        };
        if let Some((key, ..)) = batch.first() {
            self.first.note(|| RequestSubject::new(subjects::retrieval(cas, exptime), work.table_id(), key));
        }
        work.prefetch_records(batch.iter().map(|(_, hash, _)| *hash));
        if let Some(table) = work.divided_table()
            && let Some(ended) = self.divided_keys(work, table, &batch, (cas, exptime, before), used, out)
        {
            return ended;
        }
        if let Some(ended) = self.run_keys(work, &batch, (cas, exptime, before), out) {
            return ended;
        }
        match self.state {
            InputState::Requests => out.extend_from_slice(b"END\r\n"),
            InputState::SkipLine => answers::push_line(BAD_FORMAT, out),
            _ => {}
        }
        (used, next)
    }

    /// Answers keys of a multiget, which began in the state `before`, each with its hash and its end in the input.
    /// Returns the number of used bytes, and what is next, if not all of them are answered.
    fn run_keys(
        &mut self,
        work: &MemcachedContext<'_>,
        batch: &[(&[u8], u64, usize)],
        (cas, exptime, before): (bool, Option<i32>, InputState),
        out: &mut Vec<u8>,
    ) -> Option<(usize, Option<NextAction>)> {
        let mut ran = 0;
        for (key, hash, end) in batch {
            if should_yield(work, out) {
                self.state = before;
                return Some((ran, Some(NextAction::Yield)));
            }
            let start = out.len();
            let goes_on = work.get(key, *hash, cas, exptime, out);
            match self.cold.settle(work.context.participant) {
                ColdOutcome::Answered => {}
                ColdOutcome::Waits => {
                    out.truncate(start);
                    let later = batch.iter().filter(|(_, _, other)| other > end);
                    work.foresee(later.map(|(key, hash, _)| (*key, *hash)));
                    self.state = before;
                    return Some((ran, Some(NextAction::FetchCold)));
                }
                ColdOutcome::Refused(text) => {
                    out.truncate(start);
                    answers::push_line(&format!("SERVER_ERROR {text}"), out);
                    self.state = InputState::SkipLine;
                    return Some((*end, None));
                }
            }
            if !goes_on {
                if work.met_elsewhere.get() {
                    // Its slot has just gone to another server: it is looked at anew.
                    out.truncate(start);
                    self.state = before;
                    return Some((ran, Some(NextAction::Yield)));
                }
                // That was the answer to the whole line: it replaces the end of the list.
                self.state = InputState::SkipLine;
                return Some((*end, None));
            }
            ran = *end;
        }
        None
    }
}

/// Runs a batch, each request with its key's hash and its end in the input, after the prefetches. Returns the number of
/// used bytes, and what is next, if the rest has to wait.
#[inline]
fn run_plan<R>(
    work: &MemcachedContext<'_>,
    plan: &[(R, u64, usize)],
    cold: &mut ColdCommand,
    out: &mut Vec<u8>,
    (run, refuse, needed_key): (
        impl Fn(&R, u64, &mut Vec<u8>),
        impl Fn(&R, &str, &mut Vec<u8>),
        impl for<'r> Fn(&'r R) -> &'r [u8],
    ),
) -> Option<(usize, NextAction)> {
    if plan.len() > 1 {
        work.prefetch_records(plan.iter().map(|(_, hash, _)| *hash));
    }
    let mut ran = 0;
    for (at, (request, hash, end)) in plan.iter().enumerate() {
        if should_yield(work, out) {
            return Some((ran, NextAction::Yield));
        }
        let (before, start) = (work.context.requests.get(), out.len());
        run(request, *hash, out);
        if work.met_elsewhere.get() {
            // Its slot has just gone to another server: it is looked at anew.
            out.truncate(start);
            return Some((ran, NextAction::Yield));
        }
        match cold.settle(work.context.participant) {
            ColdOutcome::Answered => {}
            ColdOutcome::Waits => {
                out.truncate(start);
                work.foresee(plan[at + 1..].iter().map(|(request, hash, _)| (needed_key(request), *hash)));
                return Some((ran, NextAction::FetchCold));
            }
            ColdOutcome::Refused(text) => {
                out.truncate(start);
                refuse(request, &format!("SERVER_ERROR {text}"), out);
            }
        }
        if work.context.requests.get() == before {
            // A request without a record takes its time as well.
            work.context.work(1);
        }
        ran = *end;
    }
    None
}

/// Whether the session should yield before it goes on. It never does before any work is done: earlier answers do not
/// count.
fn should_yield(work: &MemcachedContext<'_>, out: &[u8]) -> bool {
    out.len() - work.begun >= ANSWERS_FULL_BYTES || work.written() >= WRITTEN_AT_ONCE_BYTES || work.context.is_enough()
}

/// The token at the front of the keys' line.
enum KeyToken<'i> {
    /// An incomplete key, behind this many blanks.
    Incomplete(usize),
    /// A key, and the bytes up to its end.
    Word(&'i [u8], usize),
    /// The end of the line.
    End(usize),
    /// A word that is longer than a key.
    TooLong,
}

fn next_key(input: &[u8]) -> KeyToken<'_> {
    let blanks = input.iter().take_while(|byte| **byte == b' ').count();
    let rest = &input[blanks..];
    let Some(len) = rest.iter().take(MAX_KEY_LEN + 2).position(|byte| matches!(byte, b' ' | b'\n')) else {
        return if rest.len() > MAX_KEY_LEN + 1 { KeyToken::TooLong } else { KeyToken::Incomplete(blanks) };
    };
    let word = &rest[..len];
    let ends = rest[len] == b'\n';
    let word = if ends { word.strip_suffix(b"\r").unwrap_or(word) } else { word };
    match word.len() {
        0 => KeyToken::End(blanks + len + 1),
        1..=MAX_KEY_LEN => KeyToken::Word(word, blanks + word.len()),
        _ => KeyToken::TooLong,
    }
}
