//! The memcached protocol on a tenant's tables.
//!
//! A [`Session`] takes requests from what has come: a batch of them at a time, whose buckets and then records are fetched before
//! the first is run. Keys of a get of many are taken from the line as they come, so a line of a million keys takes no more memory than
//! one of ten. `classic` and `meta` run what was read, `binary` what came in the binary protocol; `auth` lets in. Which protocol
//! it is, the first byte tells, as in memcached.

mod auth;
mod binary;
mod classic;
mod expiry;
mod meta;
mod stats;
mod sums;
mod tally;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrayvec::ArrayVec;
use sandstorm_net::memcached::{BAD_FORMAT, MAX_KEY_LEN, Parsed, Request, parse};

use self::auth::UNAUTHENTICATED;
use self::classic::{NO_TENANT, Work};
use super::{Context, Entrance, Identity, Next};
use crate::limits::protocols::{
    ANSWERS_FULL_BYTES, BATCH, DATAGRAM_ANSWER_BYTES, DATAGRAM_WORK, WRITTEN_AT_ONCE_BYTES,
};
use sandstorm_catalog::TenantView;

/// What a client is told that asks for something while the server is shutting down.
pub const SHUTTING_DOWN: &str = "SERVER_ERROR shutting down";

/// What is to be done with what comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Requests are read.
    Requests,
    /// So many bytes are skipped.
    Skips(u64),
    /// Words up to the end of the line are keys.
    Keys { cas: bool, exptime: Option<i32> },
    /// Words up to the end of the line are nothing: an error has been told of one of them.
    SkipsLine,
}

/// What one connection has said so far.
pub struct Session {
    entrance: Arc<Entrance>,
    identity: Option<Identity>,
    /// The name of the table, where the connection or its port chose one.
    table_name: Option<Box<str>>,
    /// The generation of the directory in which the table was looked up, and its id.
    table: (u64, u64),
    state: State,
    /// Wrong passwords.
    failures: u32,
    /// Whether anything has been said.
    heard: bool,
    /// Whether that was in the binary protocol.
    binary: bool,
    /// Whether SASL has begun.
    sasl_begun: bool,
    /// Whether it was counted among its tenant's connections.
    counted: bool,
}

/// How a batch ended.
enum End {
    /// The next request is not whole.
    More(usize),
    /// It is full.
    Full,
    /// The connection is to end.
    Close,
    /// Something follows that is no request.
    Then(State),
    /// Nothing more has come.
    Done,
}

impl Session {
    /// A connection to a port that is for this.
    pub fn new(entrance: &Arc<Entrance>) -> Session {
        Session {
            entrance: Arc::clone(entrance),
            identity: None,
            table_name: entrance.table.as_deref().map(Box::from),
            table: (u64::MAX, 0),
            state: State::Requests,
            failures: 0,
            heard: false,
            binary: false,
            sasl_begun: false,
            counted: false,
        }
    }

    /// Whom it acts for.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Runs what stands in one datagram, whole requests alone, and appends the answers.
    pub fn run_datagram(&mut self, context: &Context<'_>, datagram: &[u8], out: &mut Vec<u8>) {
        let (start, mut used) = (out.len(), 0);
        // There may be another tenant of that name by now.
        let view = self.identity.as_ref().and_then(|identity| identity.view(context.snapshot));
        if view.is_none() {
            self.identity = Identity::of_port(context.snapshot, &self.entrance);
        }
        loop {
            let (bytes, next) = self.run(context, &datagram[used..], out);
            used += bytes;
            let goes_on = next == Next::Again && used < datagram.len();
            // Nobody has a turn in between, so there is an end to what one datagram may ask for; a turn in which nothing was used
            // up would be followed by others like it.
            let too_much = goes_on && (bytes == 0 || context.worked() >= DATAGRAM_WORK);
            if too_much || out.len() - start > DATAGRAM_ANSWER_BYTES {
                out.truncate(start);
                match self.binary {
                    true => binary::too_much(out),
                    false => classic::line("SERVER_ERROR out of memory writing get response", out),
                }
                break;
            }
            if !goes_on {
                break;
            }
        }
        (self.state, self.heard, self.binary) = (State::Requests, false, false);
    }

    /// See [`super::Conversation::run`].
    pub(crate) fn run(&mut self, context: &Context<'_>, input: &[u8], out: &mut Vec<u8>) -> (usize, Next) {
        if !self.heard && !input.is_empty() {
            self.heard = true;
            self.binary = input[0] == sandstorm_net::memcached::binary::MAGIC;
        }
        if self.identity.is_none() {
            self.identity = Identity::of_port(context.snapshot, &self.entrance);
            match &self.identity {
                Some(identity) => return (0, Next::HandOver(identity.tenant())),
                None if self.entrance.tenant.is_none() && self.binary => {
                    return self.strange_frame(context, input, out);
                }
                None if self.entrance.tenant.is_none() => return self.authenticate(context, input, out),
                None => {
                    if let Some(text) = self.entrance.missing_tenant(context.snapshot).filter(|_| !input.is_empty()) {
                        self.tell_the_end(input, &format!("SERVER_ERROR {text}"), out);
                        return (input.len(), Next::Close);
                    }
                }
            }
        }
        let view = self.identity.as_ref().and_then(|identity| identity.view(context.snapshot));
        if view.is_none() && self.identity.is_some() {
            // The token was replaced, or the tenant is gone.
            let by_token = self.entrance.tenant.is_none();
            let missing = self.entrance.missing_tenant(context.snapshot).map(|text| format!("SERVER_ERROR {text}"));
            let text = missing.as_deref().unwrap_or(if by_token { UNAUTHENTICATED } else { NO_TENANT });
            self.tell_the_end(input, text, out);
            return (input.len(), Next::Close);
        }
        self.look_up_table(view, context);
        let by_token = self.entrance.tenant.is_none();
        let work = Work::new(context, view.map(|view| &**view), self.table.1, by_token, out.len());
        let (used, next) = self.turn(&work, input, out);
        self.tally(&work, (used, out.len()), &next);
        (used, next)
    }

    /// Takes what has come, until it is used up or others are to have their turn.
    fn turn(&mut self, work: &Work<'_>, input: &[u8], out: &mut Vec<u8>) -> (usize, Next) {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let (bytes, next) = match self.state {
                State::Requests if self.binary => self.frames(work, rest, out),
                State::Requests => self.batch(work, rest, out),
                State::Skips(left) => self.skip(left, rest),
                State::Keys { cas, exptime } => self.keys(work, cas, exptime, rest, out),
                State::SkipsLine => self.skip_line(rest),
            };
            used += bytes;
            match next {
                Some(next) => return (used, next),
                None if used == input.len() => return (used, Next::More(1)),
                None if is_enough(work, out) => return (used, Next::Again),
                None => {}
            }
        }
    }

    /// Finds the table, if the directory has changed since it was found.
    fn look_up_table(&mut self, view: Option<&Arc<TenantView>>, context: &Context<'_>) {
        let Some(view) = view else { return };
        let generation = context.snapshot.generation();
        if self.table.0 != generation {
            let named = self.table_name.as_deref();
            let id = match named {
                Some(name) => view.id_of(name),
                None => view.tables.keys().min().copied(),
            };
            self.table = (generation, id.unwrap_or(0));
        }
    }

    /// Reads a batch of requests, fetches what they touch, and runs them.
    fn batch(&mut self, work: &Work<'_>, input: &[u8], out: &mut Vec<u8>) -> (usize, Option<Next>) {
        // With where each ends.
        let mut plan: ArrayVec<(Request<'_>, u64, usize), BATCH> = ArrayVec::new();
        let mut used = 0;
        let end = loop {
            if used == input.len() {
                break End::Done;
            }
            if plan.is_full() {
                break End::Full;
            }
            match parse(&input[used..], work.max_value()) {
                Parsed::More(needed) => break End::More(needed),
                Parsed::Hopeless => {
                    work.context.protocol_error();
                    break End::Close;
                }
                Parsed::Request { request: Request::GetMany { cas, exptime }, used: bytes, .. } => {
                    used += bytes;
                    break End::Then(State::Keys { cas, exptime });
                }
                Parsed::Request { request: Request::Quit, used: bytes, .. } => {
                    used += bytes;
                    break End::Close;
                }
                Parsed::Request { request, used: bytes, skip } => {
                    used += bytes;
                    let hash = work.foresee(&request);
                    plan.push((request, hash, used));
                    if skip > 0 {
                        break End::Then(State::Skips(skip));
                    }
                }
            }
        };
        match run_plan(work, &plan, out, |request, hash, out| work.run(request, hash, out)) {
            Some(ran) => (ran, Some(Next::Again)),
            None => self.ended(end, used),
        }
    }

    /// Appends the last answer of a connection, to what it asks for next: that it may not, or not any more.
    pub fn tell_the_end(&self, input: &[u8], text: &str, out: &mut Vec<u8>) {
        match self.binary || input.first() == Some(&sandstorm_net::memcached::binary::MAGIC) {
            true => binary::gone(input, text, out),
            false => classic::line(text, out),
        }
    }

    /// What is next where a batch that was run whole has ended so.
    fn ended(&mut self, end: End, used: usize) -> (usize, Option<Next>) {
        match end {
            End::Done => (used, Some(Next::More(1))),
            End::More(needed) => (used, Some(Next::More(needed))),
            End::Full => (used, Some(Next::Again)),
            End::Close => (used, Some(Next::Close)),
            End::Then(state) => {
                self.state = state;
                (used, None)
            }
        }
    }

    fn skip(&mut self, left: u64, input: &[u8]) -> (usize, Option<Next>) {
        let bytes = usize::try_from(left).map_or(input.len(), |left| left.min(input.len()));
        let left = left - bytes as u64;
        self.state = if left == 0 { State::Requests } else { State::Skips(left) };
        (bytes, None)
    }

    fn skip_line(&mut self, input: &[u8]) -> (usize, Option<Next>) {
        match input.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                self.state = State::Requests;
                (end + 1, None)
            }
            None => (input.len(), None),
        }
    }

    /// Answers the keys of a get of many, as many as have come, up to one batch.
    fn keys(
        &mut self,
        work: &Work<'_>,
        cas: bool,
        exptime: Option<i32>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Option<Next>) {
        let mut batch: ArrayVec<(&[u8], u64, usize), BATCH> = ArrayVec::new();
        let mut used = 0;
        let (before, mut ran) = (self.state, 0);
        let next = loop {
            if batch.is_full() {
                break None;
            }
            match key(&input[used..]) {
                Key::More(blanks) => {
                    // Blanks are not kept: there may be any number of them.
                    used += blanks;
                    break Some(Next::More(input.len() - used + 1));
                }
                Key::TooLong => {
                    self.state = State::SkipsLine;
                    break None;
                }
                Key::End(bytes) => {
                    used += bytes;
                    self.state = State::Requests;
                    break None;
                }
                Key::Word(key, bytes) => {
                    used += bytes;
                    batch.push((key, work.foresee_key(key), used));
                }
            }
        };
        work.foresee_records(batch.iter().map(|(_, hash, _)| *hash));
        for (key, hash, end) in &batch {
            if is_enough(work, out) {
                self.state = before;
                return (ran, Some(Next::Again));
            }
            if !work.get(key, *hash, cas, exptime, out) {
                // That was the answer to the whole line: it is in place of the end of the list.
                self.state = State::SkipsLine;
                return (*end, None);
            }
            ran = *end;
        }
        match self.state {
            State::Requests => out.extend_from_slice(b"END\r\n"),
            State::SkipsLine => classic::line(BAD_FORMAT, out),
            _ => {}
        }
        (used, next)
    }
}

/// Runs a batch, each with its key's hash and where it ends in the input, after all that it touches was asked for. Tells how much was used up if
/// others have their turn before the rest.
#[inline]
fn run_plan<R>(
    work: &Work<'_>,
    plan: &[(R, u64, usize)],
    out: &mut Vec<u8>,
    run: impl Fn(&R, u64, &mut Vec<u8>),
) -> Option<usize> {
    if plan.len() > 1 {
        work.foresee_records(plan.iter().map(|(_, hash, _)| *hash));
    }
    let mut ran = 0;
    for (request, hash, end) in plan {
        if is_enough(work, out) {
            return Some(ran);
        }
        let before = work.context.requests.get();
        run(request, *hash, out);
        if work.context.requests.get() == before {
            // What touches no record takes its time as well.
            work.context.work(1);
        }
        ran = *end;
    }
    None
}

/// Whether others have their turn before this goes on. Never before something was done: what was answered before does not count.
fn is_enough(work: &Work<'_>, out: &[u8]) -> bool {
    out.len() - work.begun >= ANSWERS_FULL_BYTES || work.written() >= WRITTEN_AT_ONCE_BYTES || work.context.is_enough()
}

/// What stands at the front of the keys' line.
enum Key<'i> {
    /// Not all there, behind so many blanks.
    More(usize),
    /// A key, and the bytes up to its end.
    Word(&'i [u8], usize),
    /// The end of the line.
    End(usize),
    /// A word that is longer than a key.
    TooLong,
}

fn key(input: &[u8]) -> Key<'_> {
    let blanks = input.iter().take_while(|byte| **byte == b' ').count();
    let rest = &input[blanks..];
    let Some(len) = rest.iter().take(MAX_KEY_LEN + 2).position(|byte| matches!(byte, b' ' | b'\n')) else {
        return if rest.len() > MAX_KEY_LEN + 1 { Key::TooLong } else { Key::More(blanks) };
    };
    let word = &rest[..len];
    let ends = rest[len] == b'\n';
    let word = if ends { word.strip_suffix(b"\r").unwrap_or(word) } else { word };
    match word.len() {
        0 => Key::End(blanks + len + 1),
        1..=MAX_KEY_LEN => Key::Word(word, blanks + word.len()),
        _ => Key::TooLong,
    }
}
