//! Cuts messages into pieces ([`super::piece_budget`]), always between two operations. One operation is never cut: it
//! reads or writes one largest value, or a thousand keys and as many bytes.

use std::cell::Cell;
use std::mem;
use std::sync::Arc;

use arrayvec::ArrayVec;
use sandstorm_net::rpc::RpcStatus;

use super::admission::AdmittedRequest;
use super::cold_progress::ColdProgress;
use super::context::{WorkerContext, count};
use super::latency_ledger::AnswerLatency;
use super::operation_response::encode_refusal;
use super::piece_budget::{MessageWork, PieceEnd};
use super::port::{PortContext, ResponseBuffer};
use super::postponed_message::{PostponedMessage, SuspendedMessage};
use super::response_assembly::start_response;
use crate::limits::BURST;

/// Resumes the message, with that number in a batch, at `now_ns` of the workers' clock. Its answers so far are moved to
/// `response`.
pub(super) fn resume<'p>(
    postponed: &'p mut PostponedMessage,
    (number, now_ns): (usize, u64),
    response: &mut Vec<u8>,
) -> Option<AdmittedRequest<'p>> {
    let SuspendedMessage { origin, response_id, shown, index, .. } = postponed.suspended;
    let ranges = mem::take(&mut postponed.suspended.ranges);
    let saved = mem::take(&mut postponed.suspended.response);
    let waited = mem::take(&mut postponed.suspended.cold);
    if saved.is_empty() {
        start_response(&origin.header, origin.header.operations, response);
    } else {
        *response = saved;
    }
    let (first, others) = postponed.rest()?;
    Some(AdmittedRequest {
        number,
        slice: 0,
        response_id,
        origin,
        view: &postponed.suspended.view,
        first,
        others,
        from: index,
        // They were charged when it was admitted.
        requests: 0,
        ranges,
        work: MessageWork::default(),
        shown: Cell::new(shown),
        packet: None,
        has_stored_value: Cell::new(false),
        cold: ColdProgress::resumed(waited, now_ns),
    })
}

/// The messages that had not finished when a piece was over, or that wait for cold records, in their order.
pub(super) fn suspend(
    context: &WorkerContext,
    port: usize,
    admitted: ArrayVec<AdmittedRequest<'_>, BURST>,
    end: Option<PieceEnd>,
    responses: &mut [ResponseBuffer],
) -> Vec<SuspendedMessage> {
    if end.is_none() && admitted.iter().all(|message| message.cold.parked_at().is_none()) {
        return Vec::new();
    }
    let mut is_behind = false;
    let unfinished = admitted.into_iter().filter(|message| {
        is_behind |= end.is_some_and(|end| message.number == end.number);
        is_behind || message.cold.parked_at().is_some()
    });
    let suspended = unfinished.map(|message| {
        let shared = Arc::clone(&context.shared);
        let AdmittedRequest { number, origin, response_id, view, ranges, shown, from, cold, .. } = message;
        let parked_at = cold.parked_at();
        let since_ns = parked_at.map_or(0, |_| context.clock.read_ns());
        let cold = cold.wait(view.tenant.id, since_ns, move || shared.wake_if_idle(port));
        let ended_at = end.filter(|end| end.number == number).map(|end| end.index);
        let index = parked_at.or(ended_at).unwrap_or(from);
        let has_answers = index > 0 && response_id.is_none();
        let response = responses.get_mut(number).filter(|_| has_answers);
        let response = response.map(|response| mem::take(&mut response.bytes)).unwrap_or_default();
        let (view, shown) = (Arc::clone(view), shown.get());
        SuspendedMessage { number, origin, response_id, view, ranges, shown, index, response, cold }
    });
    suspended.collect()
}

/// Refuses the operations of a message that were not run.
#[cold]
pub(super) fn refuse_postponed(
    context: &mut WorkerContext,
    mut message: PostponedMessage,
    (status, text): (RpcStatus, &str),
    port: &mut PortContext,
) {
    let SuspendedMessage { origin, response_id, shown, index, .. } = message.suspended;
    let mut response = mem::take(&mut message.suspended.response);
    if response.is_empty() {
        start_response(&origin.header, origin.header.operations, &mut response);
    }
    let Some((first, others)) = message.rest() else { return };
    for (index, operation) in (index..).zip(std::iter::once(first).chain(others.flatten())) {
        count(&context.counters.responses, status as usize);
        let refuse = |response: &mut Vec<u8>| {
            encode_refusal(&operation, status, text, response);
        };
        match response_id {
            Some(response_id) => {
                port.deliver_plain(context, (response_id, index), shown, refuse);
            }
            None => refuse(&mut response),
        }
    }
    if response_id.is_none() {
        let latency = AnswerLatency::default();
        port.respond_when_durable(context, &origin, (&response, None), shown, latency, &mut Vec::new());
    }
}
