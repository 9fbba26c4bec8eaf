//! A call that has ended and is not counted yet. Its reply waits for the log, for its copies, or for a backing, and
//! this wait is part of its time.

use std::sync::Arc;

use sandstorm_accounts::{RequestSubject, RequestWaits, SlowCall};
use sandstorm_extension::LoadedExtension;
use sandstorm_metrics::OPERATIONS;
use sandstorm_metrics::histogram::RequestClass;
use sandstorm_net::rpc::OpKind;

use super::slow::SlowAnswer;
use super::waits::add_answer_wait;

/// The call: see the head of this file.
#[derive(Debug)]
pub(super) struct EndedCall {
    /// The tenant's id.
    pub(super) tenant: u32,
    pub(super) extension: Arc<LoadedExtension>,
    /// When its request was received, and when it had ended, in the workers' nanoseconds.
    pub(super) received_ns: u64,
    pub(super) ended_ns: u64,
    pub(super) cpu_ns: u64,
    /// What it waited for until its end.
    pub(super) waits: RequestWaits,
    /// What it did, for the case that it is slow.
    pub(super) did: SlowCall,
}

impl EndedCall {
    /// Notes that its reply waited for this position until `now_ns`.
    pub(super) fn note_reply_wait(&mut self, position: u64, now_ns: u64) {
        add_answer_wait(&mut self.waits, position, now_ns.saturating_sub(self.ended_ns));
    }

    /// The bytes of memory that it takes. They do not change while it waits.
    pub(super) fn size(&self) -> usize {
        size_of::<EndedCall>() + self.did.extension.len() + self.did.arguments.len()
    }

    /// What it is among slow requests, if its reply was ready to leave at `now_ns`.
    pub(super) fn answer(&self, now_ns: u64) -> SlowAnswer {
        let total_ns = now_ns.saturating_sub(self.received_ns);
        SlowAnswer {
            tenant: self.tenant,
            class: RequestClass::Call,
            subject: RequestSubject::of(OPERATIONS[OpKind::Invoke as usize]),
            count: 1,
            // What it did not compute it waited: for its turns, for memory, and for what its reply shows.
            waiting_ns: total_ns.saturating_sub(self.cpu_ns),
            service_ns: self.cpu_ns.min(total_ns),
            waits: self.waits,
        }
    }
}
