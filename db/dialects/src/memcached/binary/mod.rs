//! The binary protocol on a tenant's tables: the same work as the text protocol's, in frames. `sasl` authenticates.

mod forwarded;
pub(super) mod refusal;
mod sasl;
#[cfg(test)]
mod tests;

use arrayvec::ArrayVec;
use sandstorm_net::memcached::binary::{
    BinaryCommand, BinaryFrame, BinaryParse, BinaryResponseHeader, BinaryStatus, HEADER_LEN, parse,
};
use sandstorm_net::memcached::text::LineTokens;
use sandstorm_net::memcached::{StoreMode, StoreRequest};

use self::refusal::{SERVER_ERROR, push_refusal};
use super::super::NextAction;
use super::answers::{EXISTS, NOT_FOUND, NOT_STORED};
use super::arithmetic::ArithmeticRequest;
use super::classic::LookupResult;
use super::context::MemcachedContext;
use super::divided::KeyedCommands;
use super::stats::{self, StatWriter};
use super::subjects::subject_of_frame;
use super::{BatchEnd, InputState, MemcachedSession, NOT_FORWARDED, SHUTTING_DOWN, run_plan};
use crate::limits::protocols::{BATCH, MEMCACHED_VERSION};

/// A time of expiry with which arithmetic creates no record.
const NO_CREATE_EXPTIME: u32 = u32::MAX;

/// Appends the answer to a datagram that asks for too much.
pub(super) fn push_too_large(out: &mut Vec<u8>) {
    let status = BinaryStatus::OutOfMemory;
    BinaryResponseHeader { opcode: 0, opaque: 0, status, cas: 0, extras: b"", key: b"" }
        .push(status.text().as_bytes(), out);
}

/// Appends an error in place of each of these answers.
pub(super) fn push_in_place(mut responses: &[u8], text: &str, out: &mut Vec<u8>) {
    while let Some((header, _)) = responses.split_first_chunk::<HEADER_LEN>() {
        let (opcode, opaque) = (header[1], u32::from_be_bytes([header[12], header[13], header[14], header[15]]));
        let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let status = BinaryStatus::OutOfMemory;
        push_refusal(BinaryResponseHeader { opcode, opaque, status, cas: 0, extras: b"", key: b"" }, text, out);
        responses = responses.get(HEADER_LEN.saturating_add(body)..).unwrap_or_default();
    }
}

/// Appends the answer to a client whose right to act for its tenant has ended.
pub(super) fn push_closing(input: &[u8], text: &str, out: &mut Vec<u8>) {
    if let BinaryParse::Frame { frame, .. } = parse(input, 0) {
        let status = match text {
            SHUTTING_DOWN | NOT_FORWARDED => BinaryStatus::OutOfMemory,
            _ => BinaryStatus::Unauthorized,
        };
        let message = text.strip_prefix(SERVER_ERROR).unwrap_or(text);
        BinaryResponseHeader { status, ..answer(&frame) }.push(message.as_bytes(), out);
    }
}

/// The header of a successful answer to a frame.
fn answer(frame: &BinaryFrame<'_>) -> BinaryResponseHeader<'static> {
    BinaryResponseHeader {
        opcode: frame.opcode,
        opaque: frame.opaque,
        status: BinaryStatus::Done,
        cas: 0,
        extras: b"",
        key: b"",
    }
}

impl MemcachedSession {
    /// Reads a batch of frames, fetches what they touch, and runs them.
    pub(super) fn frames(
        &mut self,
        work: &MemcachedContext<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Option<NextAction>) {
        // Each with its end.
        let mut plan: ArrayVec<(BinaryFrame<'_>, u64, usize), BATCH> = ArrayVec::new();
        let mut used = 0;
        let end = loop {
            if used == input.len() {
                break BatchEnd::Done;
            }
            if plan.is_full() {
                break BatchEnd::Full;
            }
            match parse(&input[used..], work.max_value()) {
                BinaryParse::Incomplete(needed) => break BatchEnd::NeedMore(needed),
                BinaryParse::Fatal => {
                    work.context.count_protocol_error();
                    break BatchEnd::Close;
                }
                BinaryParse::Frame { frame, .. } if is_sasl(&frame) && !plan.is_empty() => break BatchEnd::Full,
                BinaryParse::Frame { frame, used: bytes, skip } if is_sasl(&frame) => {
                    self.skip_bytes(skip);
                    return (bytes, self.sasl(work.context, &frame, out));
                }
                BinaryParse::Frame { frame, used: bytes, skip } => {
                    used += bytes;
                    plan.push((frame, work.prefetch_frame(&frame), used));
                    match frame.command {
                        BinaryCommand::Quit => break BatchEnd::Close,
                        BinaryCommand::Malformed(_) => {
                            work.context.count_protocol_error();
                            break BatchEnd::Close;
                        }
                        _ if skip > 0 => break BatchEnd::Switch(InputState::SkipBytes(skip)),
                        _ => {}
                    }
                }
            }
        };
        if let Some((frame, ..)) = plan.first() {
            self.first.note(|| subject_of_frame(frame, work.table_id()));
        }
        let refuse = |frame: &BinaryFrame<'_>, text: &str, out: &mut Vec<u8>| push_refusal(answer(frame), text, out);
        let run = |frame: &BinaryFrame<'_>, hash: u64, out: &mut Vec<u8>| work.run_frame(frame, hash, out);
        let runner = (run, refuse, needed_key);
        if let Some(table) = work.divided_table() {
            let kind = (forwarded::place_of_frame, forwarded::refusal_of_frame);
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

    /// Notes that `bytes` are to be skipped.
    fn skip_bytes(&mut self, bytes: u64) {
        if bytes > 0 {
            self.state = InputState::SkipBytes(bytes);
        }
    }
}

/// The key by whose record a frame decides; empty: by none.
fn needed_key<'f>(frame: &'f BinaryFrame<'_>) -> &'f [u8] {
    match &frame.command {
        BinaryCommand::Get { key, .. }
        | BinaryCommand::Touch { key, .. }
        | BinaryCommand::Delete { key, .. }
        | BinaryCommand::Arithmetic { key, .. } => key,
        BinaryCommand::Store { store, .. } if store.verb != StoreMode::Set => store.key,
        _ => b"",
    }
}

/// Whether a frame authenticates: such a frame is processed alone.
fn is_sasl(frame: &BinaryFrame<'_>) -> bool {
    matches!(frame.command, BinaryCommand::Sasl(_) | BinaryCommand::Refused(_))
}

impl<'w> MemcachedContext<'w> {
    /// Hashes a frame's key and prefetches its bucket; 0: it has no key.
    #[inline]
    fn prefetch_frame(&self, frame: &BinaryFrame<'_>) -> u64 {
        match &frame.command {
            BinaryCommand::Get { key, .. }
            | BinaryCommand::Touch { key, .. }
            | BinaryCommand::Store { store: StoreRequest { key, .. }, .. }
            | BinaryCommand::TooLarge { key, .. }
            | BinaryCommand::Delete { key, .. }
            | BinaryCommand::Arithmetic { key, .. } => self.prefetch_key(key),
            _ => 0,
        }
    }

    /// Runs a frame and appends its answer.
    fn run_frame(&self, frame: &BinaryFrame<'_>, hash: u64, out: &mut Vec<u8>) {
        let done = answer(frame);
        let ended = match frame.command {
            BinaryCommand::Get { key, exptime, with_key } => {
                let found = self.look_up(key, hash, exptime.map(i64::from));
                return push_found(frame, found, if with_key { key } else { b"" }, out);
            }
            BinaryCommand::Touch { key, exptime } => {
                return match self.touch(key, hash, exptime.into()) {
                    Ok(Some((record, number))) => {
                        BinaryResponseHeader { cas: number, extras: &record.flags().to_be_bytes(), ..done }
                            .push(b"", out);
                    }
                    Ok(None) => push_refusal(done, NOT_FOUND, out),
                    Err(text) => push_refusal(done, text, out),
                };
            }
            BinaryCommand::Store { ref store, cas } => {
                self.store(store, hash, cas).map_err(|text| match (text, store.verb) {
                    (NOT_STORED, StoreMode::Add) => EXISTS,
                    (NOT_STORED, StoreMode::Replace) => NOT_FOUND,
                    (text, _) => text,
                })
            }
            BinaryCommand::TooLarge { key, set } => Err(self.too_large(key, hash, set)),
            BinaryCommand::Delete { key, cas } => match self.delete(key, hash, cas) {
                "DELETED" => Ok(0),
                text => Err(text),
            },
            BinaryCommand::Arithmetic { key, delta, initial, exptime, up, cas } => {
                let initial = (exptime != NO_CREATE_EXPTIME).then_some((initial, exptime.into()));
                match self.arithmetic(key, hash, &ArithmeticRequest { delta, up, cas, initial }) {
                    Ok((sum, number)) if !frame.quiet => {
                        return BinaryResponseHeader { cas: number, ..done }.push(&sum.to_be_bytes(), out);
                    }
                    ended => ended.map(|(_, number)| number),
                }
            }
            BinaryCommand::Flush { delay } => match self.flush_all(delay.into()) {
                "OK" => Ok(0),
                text => Err(text),
            },
            BinaryCommand::Stat { name } => {
                let before = out.len();
                stats::stats(self, LineTokens::new(name), StatWriter::binary(done, out));
                return self.read_whole(out.len() - before);
            }
            BinaryCommand::Version => return done.push(MEMCACHED_VERSION.as_bytes(), out),
            BinaryCommand::Noop | BinaryCommand::Quit => Ok(0),
            BinaryCommand::Malformed(status) | BinaryCommand::Refused(status) => {
                return push_status(frame, status, out);
            }
            BinaryCommand::Unknown | BinaryCommand::Sasl(_) => {
                return push_status(frame, BinaryStatus::UnknownCommand, out);
            }
        };
        match ended {
            Ok(_) if frame.quiet => {}
            Ok(number) => BinaryResponseHeader { cas: number, ..done }.push(b"", out),
            Err(text) => push_refusal(done, text, out),
        }
    }
}

/// Appends a status with memcached's own words.
fn push_status(frame: &BinaryFrame<'_>, status: BinaryStatus, out: &mut Vec<u8>) {
    BinaryResponseHeader { status, ..answer(frame) }.push(status.text().as_bytes(), out);
}

/// Appends a record, with its key unless that is empty.
#[inline]
fn push_found(frame: &BinaryFrame<'_>, found: LookupResult<'_>, key: &[u8], out: &mut Vec<u8>) {
    let done = answer(frame);
    match found {
        Ok(Some((record, number))) => {
            BinaryResponseHeader { cas: number, extras: &record.flags().to_be_bytes(), key, ..done }
                .push(record.value(), out);
            record.note_fetched();
        }
        Ok(None) if frame.quiet => {}
        Ok(None) if !key.is_empty() => {
            BinaryResponseHeader { status: BinaryStatus::NotFound, key, ..done }.push(b"", out)
        }
        Ok(None) => push_refusal(done, NOT_FOUND, out),
        Err(text) => push_refusal(done, text, out),
    }
}
