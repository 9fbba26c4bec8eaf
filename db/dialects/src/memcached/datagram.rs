//! Requests of datagrams: each is run by itself, whole requests alone, and answered at once.
//!
//! One session serves all senders of a port. Where commands are for keys of other servers of the cluster, the rest of
//! the datagram is set aside, with its answers so far, and goes on once those have answered. Work of a datagram is
//! bounded, and a request to another server counts as much, so a datagram asks others ten times at most.

use std::mem;

use sandstorm_net::forwarding::{ForwardedAnswer, ForwardedBatch};
use sandstorm_net::memcached::binary::RESPONSE_MAGIC;

use super::divided::ForwardRun;
use super::{InputState, MemcachedSession, NOT_FORWARDED, SHUTTING_DOWN, answers, binary};
use crate::cold_command::ColdCommand;
use crate::first_command::FirstCommand;
use crate::limits::protocols::{DATAGRAM_ANSWER_BYTES, DATAGRAM_STALLS, DATAGRAM_WORK, FORWARDED_WORK};
use crate::{CommandContext, ConnectionIdentity, NextAction, UncertainAnswer};
use sandstorm_accounts::RequestSubject;
use sandstorm_store::spill::ColdMiss;

/// A datagram that waits for other servers of the cluster.
pub struct SuspendedDatagram {
    /// What is not answered of it.
    rest: Vec<u8>,
    /// The answers so far.
    answers: Vec<u8>,
    state: InputState,
    is_binary: bool,
    forwarded: Option<Box<ForwardRun>>,
    first: FirstCommand,
    /// Its work so far, in plain requests.
    work: u32,
}

/// A datagram that is set aside, and its commands for other servers.
pub struct ForwardedDatagram {
    /// See [`MemcachedSession::resume_datagram`].
    pub suspended: SuspendedDatagram,
    /// The commands.
    pub batch: ForwardedBatch,
}

/// A refusal of each command of a batch that is not sent.
fn refusals(batch: &ForwardedBatch) -> Vec<ForwardedAnswer> {
    batch.commands.iter().map(|_| ForwardedAnswer::Refused(NOT_FORWARDED.to_owned())).collect()
}

impl SuspendedDatagram {
    /// Bytes that it uses, with the commands that are under way for it.
    pub fn used_bytes(&self) -> usize {
        let run = self.forwarded.as_ref().map_or(0, |run| run.used_bytes());
        size_of::<SuspendedDatagram>() + self.rest.capacity() + self.answers.capacity() + run
    }

    /// Whether there are answers to commands that have run, which nothing but an answer tells its client.
    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// What its first command is about.
    pub fn first_command(&self) -> RequestSubject {
        self.first.subject()
    }
}

impl MemcachedSession {
    /// Runs the requests of one datagram, whole ones alone, and appends the answers. `Some`: none yet, other servers
    /// are to be asked first.
    pub fn run_datagram(
        &mut self,
        context: &CommandContext<'_>,
        datagram: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<ForwardedDatagram> {
        self.begin_answers();
        self.go_on(context, (datagram, 0), out.len(), out)
    }

    /// Goes on with a datagram that was set aside, now that other servers have answered.
    pub fn resume_datagram(
        &mut self,
        context: &CommandContext<'_>,
        suspended: SuspendedDatagram,
        answers: Vec<ForwardedAnswer>,
        out: &mut Vec<u8>,
    ) -> Option<ForwardedDatagram> {
        let (start, work) = (out.len(), suspended.work);
        let rest = self.take_up(suspended, answers, out);
        self.go_on(context, (&rest, work), start, out)
    }

    /// Ends a datagram that was set aside, with what other servers have answered: the server stops, and runs no more of
    /// it.
    pub fn stop_datagram(&mut self, suspended: SuspendedDatagram, answers: Vec<ForwardedAnswer>, out: &mut Vec<u8>) {
        let start = out.len();
        let rest = self.take_up(suspended, answers, out);
        self.refuse_rest(&rest, SHUTTING_DOWN, out);
        self.bound_answer(start, out);
        self.end_datagram();
    }

    /// Ends a datagram of which some commands have run, since it may not wait for other servers: nothing of what it has
    /// for them is sent, and nothing behind that is run.
    pub fn give_up_datagram(&mut self, forwarded: ForwardedDatagram, out: &mut Vec<u8>) {
        let ForwardedDatagram { suspended, batch } = forwarded;
        let start = out.len();
        let rest = self.take_up(suspended, refusals(&batch), out);
        self.refuse_rest(&rest, NOT_FORWARDED, out);
        self.bound_answer(start, out);
        self.end_datagram();
    }

    /// Has an error stand for an answer, from `start` on, that is longer than one to a sender may be whose address is
    /// not proven.
    fn bound_answer(&self, start: usize, out: &mut Vec<u8>) {
        if out.len() - start > DATAGRAM_ANSWER_BYTES {
            self.answer_out_of_memory(start, out);
        }
    }

    fn answer_out_of_memory(&self, start: usize, out: &mut Vec<u8>) {
        out.truncate(start);
        match self.binary {
            true => binary::push_too_large(out),
            false => answers::push_line("SERVER_ERROR out of memory writing get response", out),
        }
    }

    /// The answer to a datagram whose own one has waited in vain, of which it says whether it stands: one for each of
    /// its answers in the binary protocol, and one for all in the others.
    pub fn datagram_not_durable(answer: &[u8], uncertain: UncertainAnswer, out: &mut Vec<u8>) {
        let text = format!("SERVER_ERROR {}", uncertain.text());
        if answer.first() == Some(&RESPONSE_MAGIC) {
            binary::push_in_place(answer, &text, out);
        } else {
            answers::push_line(&text, out);
        }
    }

    /// Answers what is not answered of a datagram by an error, and runs none of it.
    fn refuse_rest(&self, rest: &[u8], text: &str, out: &mut Vec<u8>) {
        let unanswered = self.unanswered(rest);
        let next = match self.state {
            // They belong to a command that has its answer.
            InputState::SkipBytes(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX),
            InputState::SkipLine => unanswered.iter().position(|byte| *byte == b'\n').map_or(usize::MAX, |end| end + 1),
            InputState::Requests | InputState::Keys { .. } => 0,
        };
        let unanswered = unanswered.get(next..).unwrap_or_default();
        if !unanswered.is_empty() {
            self.reply_closing(unanswered, text, out);
        }
    }

    /// Takes up a datagram where it was set aside, and appends its answers. Returns the rest of it.
    fn take_up(&mut self, suspended: SuspendedDatagram, answers: Vec<ForwardedAnswer>, out: &mut Vec<u8>) -> Vec<u8> {
        (self.state, self.has_input, self.binary) = (suspended.state, true, suspended.is_binary);
        (self.forwarded, self.first) = (suspended.forwarded, suspended.first);
        out.extend_from_slice(&suspended.answers);
        self.forwarded(answers, out);
        suspended.rest
    }

    /// Leaves nothing of a datagram to the next one.
    fn end_datagram(&mut self) {
        (self.state, self.has_input, self.binary) = (InputState::Requests, false, false);
        (self.forwarded, self.cold) = (None, ColdCommand::default());
    }

    /// Runs what is left of a datagram, on which `work` was spent before. Its answers begin at `start`.
    fn go_on(
        &mut self,
        context: &CommandContext<'_>,
        (datagram, work): (&[u8], u32),
        start: usize,
        out: &mut Vec<u8>,
    ) -> Option<ForwardedDatagram> {
        // Another tenant may have that name by now.
        let view = self.identity.as_ref().and_then(|identity| identity.view(context.snapshot));
        if view.is_none() {
            self.identity = ConnectionIdentity::from_port(context.snapshot, &self.service);
        }
        let (mut used, mut stalls, mut forwarded) = (0, 0, None);
        loop {
            let (bytes, next) = self.run(context, &datagram[used..], out);
            used += bytes;
            let is_long = out.len() - start > DATAGRAM_ANSWER_BYTES;
            let worked = work.saturating_add(context.work_done());
            match next {
                // An owner that is asked again and again, since a slot does not come to rest, is one that is asked.
                NextAction::Forward(batch) if !is_long && worked >= DATAGRAM_WORK + FORWARDED_WORK as u32 => {
                    self.forwarded(refusals(&batch), out);
                    self.refuse_rest(&datagram[used..], NOT_FORWARDED, out);
                    self.bound_answer(start, out);
                    break;
                }
                NextAction::Forward(batch) if !is_long => {
                    let batch = ForwardedBatch { is_datagram: true, ..*batch };
                    let answers = out[start..].to_vec();
                    out.truncate(start);
                    let suspended = self.set_aside(datagram[used..].to_vec(), answers, worked);
                    forwarded = Some(ForwardedDatagram { suspended, batch });
                    break;
                }
                NextAction::FetchCold => {
                    // A datagram does not wait for the disk. The client's next one finds the records in memory. What
                    // stands before that command was done, and keeps its answers.
                    let reader = self.identity.as_ref().map_or(0, ConnectionIdentity::tenant);
                    let _ticket = ColdMiss::fetch(context.participant.shown().take_cold(), reader, || {});
                    match self.binary {
                        true => binary::push_too_large(out),
                        false => answers::push_line(answers::COLD, out),
                    }
                    break;
                }
                _ => {}
            }
            // A key whose slot has just gone is looked at anew. Further turns without progress would be followed by
            // others like them.
            stalls = if bytes == 0 { stalls + 1 } else { 0 };
            let goes_on = next == NextAction::Yield && used < datagram.len();
            // No other tenant has a turn in between, so the work of one datagram is limited.
            if is_long || (goes_on && (stalls > DATAGRAM_STALLS || worked >= DATAGRAM_WORK)) {
                self.answer_out_of_memory(start, out);
                break;
            }
            if !goes_on {
                break;
            }
        }
        self.end_datagram();
        forwarded
    }

    fn set_aside(&mut self, rest: Vec<u8>, answers: Vec<u8>, work: u32) -> SuspendedDatagram {
        SuspendedDatagram {
            rest,
            answers,
            state: self.state,
            is_binary: self.binary,
            forwarded: self.forwarded.take(),
            first: mem::replace(&mut self.first, FirstCommand::none("memcached")),
            work,
        }
    }
}
