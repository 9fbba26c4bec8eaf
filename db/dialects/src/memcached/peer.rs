//! Runs commands of memcached clients that another server of the cluster has sent, since their keys are this server's.
//! That server has looked whether the client may act for the tenant. The formats are in [`sandstorm_net::forwarding`].

use std::sync::Arc;

use sandstorm_net::forwarding::{
    ANSWER_HEADER_BYTES, COMMAND_HEADER_BYTES, ForwardedHead, ForwardedOutcome, begin_answer, end_answer, next_command,
    push_answer,
};

use super::{InputState, MemcachedSession};
use crate::limits::protocols::{ANSWERS_FULL_BYTES, FORWARDED_ANSWER_BYTES};
use crate::{CommandContext, ConnectionIdentity, NextAction, PortService, Protocol, UncertainAnswer};
use sandstorm_accounts::RequestSubject;
use sandstorm_catalog::DirectorySnapshot;
use sandstorm_store::spill::SpillReadError;

/// What the client of a command is told that is not whole here: servers of a cluster may differ in the longest value.
const NOT_WHOLE: &str = "the key's owner reads the command in another way, and has not run it: give all servers of the \
                         cluster the same version and configuration";

/// The session of one request of another server.
pub struct PeerSession {
    session: MemcachedSession,
    head: ForwardedHead,
    /// Commands that are not answered.
    left: u32,
    /// Bytes of the answers so far.
    answer_bytes: usize,
    /// Why the rest is not run.
    refused: Option<ForwardedOutcome>,
}

/// The outcome of one command.
enum PeerStep {
    /// It is answered.
    Answered,
    /// It is to be tried again.
    Waits(NextAction),
}

impl PeerSession {
    /// A session for the commands behind a head. `None`: there is no such tenant here yet.
    pub fn new(snapshot: &DirectorySnapshot, head: &ForwardedHead) -> Option<PeerSession> {
        let tenant = &snapshot.tenant(head.tenant)?.tenant;
        let (protocol, name) = (Protocol::Memcached, Some(tenant.name.clone()));
        let service = Arc::new(PortService { protocol, tenant: name, table: None, public: false });
        let mut session = MemcachedSession::new(&service);
        session.identity = Some(ConnectionIdentity::of_peer(tenant));
        session.fixed_table = Some(head.table);
        (session.has_input, session.binary, session.counted) = (true, head.is_binary, true);
        Some(PeerSession { session, head: *head, left: head.commands, answer_bytes: 0, refused: None })
    }

    /// The identity that it acts for.
    pub(crate) fn identity(&self) -> Option<&ConnectionIdentity> {
        self.session.identity()
    }

    /// See [`crate::ProtocolSession::first_command`].
    pub(crate) fn first_command(&self) -> RequestSubject {
        self.session.first_command()
    }

    /// See [`crate::ProtocolSession::begin_answers`].
    pub(crate) fn begin_answers(&mut self) {
        self.session.begin_answers();
    }

    pub(crate) fn set_cold_error(&mut self, error: SpillReadError) {
        self.session.cold.set_error(error);
    }

    /// See [`crate::ProtocolSession::run`].
    pub(crate) fn run(&mut self, context: &CommandContext<'_>, input: &[u8], out: &mut Vec<u8>) -> (usize, NextAction) {
        let (mut used, begun) = (0, out.len());
        while self.left > 0 {
            if used > 0 && (context.is_enough() || out.len() - begun >= ANSWERS_FULL_BYTES) {
                return (used, NextAction::Yield);
            }
            let command = match next_command(&input[used..]) {
                Ok(command) => command,
                Err(needed) => return (used, NextAction::NeedMore(needed)),
            };
            match self.run_command(context, command, out) {
                PeerStep::Answered => (used, self.left) = (used + COMMAND_HEADER_BYTES + command.len(), self.left - 1),
                PeerStep::Waits(next) => return (used, next),
            }
        }
        (used, NextAction::Close)
    }

    /// Runs one command, and appends its answer.
    fn run_command(&mut self, context: &CommandContext<'_>, command: &[u8], out: &mut Vec<u8>) -> PeerStep {
        if self.answer_bytes >= FORWARDED_ANSWER_BYTES {
            self.refused = Some(ForwardedOutcome::Full);
        } else if self.refused.is_none() && !self.has_table(context) {
            self.refused = Some(ForwardedOutcome::NotReady);
        }
        if let Some(outcome) = self.refused {
            push_answer(outcome, b"", out);
            return PeerStep::Answered;
        }
        let (start, mut at) = (begin_answer(out), 0);
        let outcome = loop {
            let (bytes, next) = self.session.run(context, &command[at..], out);
            at += bytes;
            match next {
                NextAction::Forward(_) => {
                    self.session.forwarded = None;
                    break ForwardedOutcome::NotOwned;
                }
                // Nothing of it was run: the turn is over, or its records are on the disk.
                NextAction::Yield | NextAction::FetchCold if at == 0 => {
                    out.truncate(start);
                    return PeerStep::Waits(next);
                }
                NextAction::Yield if at < command.len() => {}
                // It is whole for the server that has sent it, and not for this one. The client waits for an answer.
                _ if at < command.len() => break ForwardedOutcome::Refused,
                _ => break ForwardedOutcome::Answered,
            }
        };
        // What a value too long would be followed by is not sent.
        self.session.state = InputState::Requests;
        match outcome {
            ForwardedOutcome::NotOwned => {
                out.truncate(start + ANSWER_HEADER_BYTES);
                self.refused = self.head.is_ordered.then_some(outcome);
            }
            ForwardedOutcome::Refused => {
                out.truncate(start + ANSWER_HEADER_BYTES);
                out.extend_from_slice(NOT_WHOLE.as_bytes());
            }
            _ => {}
        }
        end_answer(start, outcome, out);
        self.answer_bytes += out.len() - start;
        PeerStep::Answered
    }

    /// Whether the table is the one that the other server means.
    fn has_table(&self, context: &CommandContext<'_>) -> bool {
        let view = self.session.identity().and_then(|identity| identity.view(context.snapshot));
        let entry = view.and_then(|view| view.reach(self.head.table, false).ok());
        entry.is_some_and(|entry| entry.serial() == self.head.serial)
    }

    /// Tells that the server stops, and has run nothing more.
    pub(crate) fn stops(&self, out: &mut Vec<u8>) {
        push_answer(ForwardedOutcome::Stopping, b"", out);
    }

    /// The one answer in place of those that have waited in vain.
    pub(crate) fn not_durable(&self, uncertain: UncertainAnswer, out: &mut Vec<u8>) {
        push_answer(ForwardedOutcome::Uncertain, uncertain.text().as_bytes(), out);
    }
}
