//! Counts commands once they are answered, and finds their tenant's home worker.

use super::connection::ClientConnection;
use crate::workers::call_latency::count_ended;
use crate::workers::context::WorkerContext;
use crate::workers::latency_ledger::ReadyCall;

/// Notes that the commands which came at `received_ns` are answered.
pub(super) fn note_answered(connection: &ClientConnection, received_ns: u64, context: &mut WorkerContext) {
    if let Some(identity) = connection.session.identity() {
        let class = connection.session.request_class();
        context.answered.note(identity.tenant(), class, received_ns, || connection.session.first_command());
        if let Some(waits) = &connection.waits {
            context.answered.note_waits(**waits);
        }
    }
}

/// Counts a call whose reply waited until now, if it is not counted yet.
pub(super) fn count_waited(call: &mut ReadyCall, (position, now_ns): (u64, u64), context: &WorkerContext) {
    if let Some(ended) = call.ended.take() {
        count_ended(context, *ended, (position, now_ns));
    }
}

/// The home worker of a tenant; of one that is gone this worker.
pub(super) fn home_of(tenant: u32, context: &WorkerContext) -> usize {
    let home = context.snapshot.tenant(tenant).map(|view| view.tenant.home_worker as usize);
    home.map_or(context.index, |home| home % context.shared.ports.len())
}
