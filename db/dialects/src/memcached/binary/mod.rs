//! The binary protocol on a tenant's tables: the same work as the text protocol's, told in frames. `sasl` lets in.

mod sasl;
#[cfg(test)]
mod tests;

use arrayvec::ArrayVec;
use sandstorm_net::memcached::TOO_LARGE;
use sandstorm_net::memcached::binary::{Answer, Command, Frame, Parsed, Status, parse};
use sandstorm_net::memcached::text::Words;
use sandstorm_net::memcached::{Store, Verb};

use super::super::Next;
use super::auth::UNAUTHENTICATED;
use super::classic::{
    EXISTS, Found, NO_TABLE, NO_TENANT, NOT_FOUND, NOT_NUMERIC, NOT_OWNER, NOT_STORED, READ_ONLY, Work,
};
use super::stats::{self, Lines};
use super::sums::Sum;
use super::{End, SHUTTING_DOWN, Session, State, run_plan};
use crate::limits::protocols::{BATCH, COMPATIBLE};

/// A time of expiry with which arithmetic makes nothing.
const MAKE_NOTHING: u32 = u32::MAX;

/// The beginning of texts for people, which stands in the status here.
const SERVER_ERROR: &str = "SERVER_ERROR ";

/// What a text of the text protocol is here. The statuses are memcached's own, since clients close connections over others; what it
/// has none for is told by the text behind it.
fn status_of(text: &str) -> Status {
    match text {
        NOT_FOUND => Status::NotFound,
        EXISTS => Status::Exists,
        NOT_STORED => Status::NotStored,
        TOO_LARGE => Status::TooLarge,
        NOT_NUMERIC => Status::NotANumber,
        READ_ONLY | NOT_OWNER | NO_TABLE | NO_TENANT | UNAUTHENTICATED => Status::Unauthorized,
        _ => Status::OutOfMemory,
    }
}

/// Appends a refusal in the words of the text protocol.
pub(super) fn push_refusal(answer: Answer<'_>, text: &str, out: &mut Vec<u8>) {
    let status = status_of(text);
    let said = text.strip_prefix(SERVER_ERROR).filter(|_| status != Status::TooLarge);
    Answer { status, cas: 0, extras: b"", key: b"", ..answer }.push(said.unwrap_or(status.text()).as_bytes(), out);
}

/// Appends the answer to a datagram that asks for too much.
pub(super) fn too_much(out: &mut Vec<u8>) {
    let status = Status::OutOfMemory;
    Answer { opcode: 0, opaque: 0, status, cas: 0, extras: b"", key: b"" }.push(status.text().as_bytes(), out);
}

/// Appends the answer to one whose right to be here has ended.
pub(super) fn gone(input: &[u8], text: &str, out: &mut Vec<u8>) {
    if let Parsed::Frame { frame, .. } = parse(input, 0) {
        let status = if text == SHUTTING_DOWN { Status::OutOfMemory } else { Status::Unauthorized };
        let said = text.strip_prefix(SERVER_ERROR).unwrap_or(text);
        Answer { status, ..answer(&frame) }.push(said.as_bytes(), out);
    }
}

/// What all answers to a frame have in common: that all is well.
fn answer(frame: &Frame<'_>) -> Answer<'static> {
    Answer { opcode: frame.opcode, opaque: frame.opaque, status: Status::Done, cas: 0, extras: b"", key: b"" }
}

impl Session {
    /// Reads a batch of frames, fetches what they touch, and runs them.
    pub(super) fn frames(&mut self, work: &Work<'_>, input: &[u8], out: &mut Vec<u8>) -> (usize, Option<Next>) {
        // With where each ends.
        let mut plan: ArrayVec<(Frame<'_>, u64, usize), BATCH> = ArrayVec::new();
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
                Parsed::Frame { frame, .. } if is_sasl(&frame) && !plan.is_empty() => break End::Full,
                Parsed::Frame { frame, used: bytes, skip } if is_sasl(&frame) => {
                    self.skips(skip);
                    return (bytes, self.sasl(work.context, &frame, out));
                }
                Parsed::Frame { frame, used: bytes, skip } => {
                    used += bytes;
                    plan.push((frame, work.foresee_frame(&frame), used));
                    match frame.command {
                        Command::Quit => break End::Close,
                        Command::Malformed(_) => {
                            work.context.protocol_error();
                            break End::Close;
                        }
                        _ if skip > 0 => break End::Then(State::Skips(skip)),
                        _ => {}
                    }
                }
            }
        };
        match run_plan(work, &plan, out, |request, hash, out| work.run_frame(request, hash, out)) {
            Some(ran) => (ran, Some(Next::Again)),
            None => self.ended(end, used),
        }
    }

    /// Notes that so many bytes are to be skipped.
    fn skips(&mut self, bytes: u64) {
        if bytes > 0 {
            self.state = State::Skips(bytes);
        }
    }
}

/// Whether a frame is about who this is: such a one is looked at alone.
fn is_sasl(frame: &Frame<'_>) -> bool {
    matches!(frame.command, Command::Sasl(_) | Command::Refused(_))
}

impl<'w> Work<'w> {
    /// Hashes a frame's key and has its bucket fetched; 0: it has none.
    #[inline]
    fn foresee_frame(&self, frame: &Frame<'_>) -> u64 {
        match &frame.command {
            Command::Get { key, .. }
            | Command::Touch { key, .. }
            | Command::Store { store: Store { key, .. }, .. }
            | Command::TooLarge { key, .. }
            | Command::Delete { key, .. }
            | Command::Arithmetic { key, .. } => self.foresee_key(key),
            _ => 0,
        }
    }

    /// Runs a frame and appends its answer.
    fn run_frame(&self, frame: &Frame<'_>, hash: u64, out: &mut Vec<u8>) {
        let done = answer(frame);
        let ended = match frame.command {
            Command::Get { key, exptime, with_key } => {
                let found = self.look(key, hash, exptime.map(i64::from));
                return push_found(frame, found, if with_key { key } else { b"" }, out);
            }
            Command::Touch { key, exptime } => {
                return match self.touch(key, hash, exptime.into()) {
                    Ok(Some((record, number))) => {
                        Answer { cas: number, extras: &record.flags().to_be_bytes(), ..done }.push(b"", out);
                    }
                    Ok(None) => push_refusal(done, NOT_FOUND, out),
                    Err(text) => push_refusal(done, text, out),
                };
            }
            Command::Store { ref store, cas } => {
                self.store(store, hash, cas).map_err(|text| match (text, store.verb) {
                    (NOT_STORED, Verb::Add) => EXISTS,
                    (NOT_STORED, Verb::Replace) => NOT_FOUND,
                    (text, _) => text,
                })
            }
            Command::TooLarge { key, set } => Err(self.too_large(key, hash, set)),
            Command::Delete { key, cas } => match self.delete(key, hash, cas) {
                "DELETED" => Ok(0),
                text => Err(text),
            },
            Command::Arithmetic { key, delta, initial, exptime, up, cas } => {
                let initial = (exptime != MAKE_NOTHING).then_some((initial, exptime.into()));
                match self.arithmetic(key, hash, &Sum { delta, up, cas, initial }) {
                    Ok((sum, number)) if !frame.quiet => {
                        return Answer { cas: number, ..done }.push(&sum.to_be_bytes(), out);
                    }
                    ended => ended.map(|(_, number)| number),
                }
            }
            Command::Flush { delay } => match self.flush_all(delay.into()) {
                "OK" => Ok(0),
                text => Err(text),
            },
            Command::Stat { name } => {
                let before = out.len();
                stats::stats(self, Words::new(name), Lines::binary(done, out));
                return self.tells(out.len() - before);
            }
            Command::Version => return done.push(COMPATIBLE.as_bytes(), out),
            Command::Nothing | Command::Quit => Ok(0),
            Command::Malformed(status) | Command::Refused(status) => return push_status(frame, status, out),
            Command::Unknown | Command::Sasl(_) => return push_status(frame, Status::UnknownCommand, out),
        };
        match ended {
            Ok(_) if frame.quiet => {}
            Ok(number) => Answer { cas: number, ..done }.push(b"", out),
            Err(text) => push_refusal(done, text, out),
        }
    }
}

/// Appends a status with memcached's own words.
fn push_status(frame: &Frame<'_>, status: Status, out: &mut Vec<u8>) {
    Answer { status, ..answer(frame) }.push(status.text().as_bytes(), out);
}

/// Appends a record that was asked for, with its key unless that is empty.
#[inline]
fn push_found(frame: &Frame<'_>, found: Found<'_>, key: &[u8], out: &mut Vec<u8>) {
    let done = answer(frame);
    match found {
        Ok(Some((record, number))) => {
            Answer { cas: number, extras: &record.flags().to_be_bytes(), key, ..done }.push(record.value(), out);
            record.note_fetched();
        }
        Ok(None) if frame.quiet => {}
        Ok(None) if !key.is_empty() => Answer { status: Status::NotFound, key, ..done }.push(b"", out),
        Ok(None) => push_refusal(done, NOT_FOUND, out),
        Err(text) => push_refusal(done, text, out),
    }
}
