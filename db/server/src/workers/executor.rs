//! Runs the requests of a worker, from packets and from connections.

use sandstorm_dialects::limits::REQUEST_NS;
use sandstorm_dialects::limits::protocols::{CONTENDED_PIECE_WORK, PIECE_WORK};
use sandstorm_dialects::{CommandContext, ConnectionIdentity};

use super::context::WorkerContext;
use super::invocations::InvocationScheduler;

/// The executor: see the head of this file.
pub(super) struct RequestExecutor {
    pub(super) context: WorkerContext,
    pub(super) invocations: InvocationScheduler,
}

impl RequestExecutor {
    /// Takes the new snapshot if the directory has changed.
    pub(super) fn refresh_snapshot(&mut self) {
        let context = &mut self.context;
        if context.shared.directory.generation() != context.snapshot.generation() {
            context.snapshot = context.shared.directory.snapshot();
            self.invocations.engine.sees(context.snapshot.generation());
        }
    }

    /// Notes the tenant of requests, and charges them to its share of the CPU while invocations wait for theirs.
    pub(super) fn charge_requests(&mut self, tenant: u32, requests: u32) {
        let RequestExecutor { context, invocations } = self;
        context.recent_tenants.note(tenant, context.clock.now_us);
        if invocations.queue.is_active()
            && let Some(view) = context.snapshot.tenant(tenant)
        {
            invocations.queue.charge_tenant(tenant, view.tenant.quotas.weight, u64::from(requests) * REQUEST_NS);
        }
    }

    /// Charges requests of a connection, if it has authenticated.
    pub(super) fn charge_connection(&mut self, identity: Option<&ConnectionIdentity>, requests: u32) {
        if let Some(identity) = identity.filter(|_| requests > 0) {
            self.charge_requests(identity.tenant(), requests);
        }
    }

    /// Counts what a connection's commands took for their tenant's load here.
    pub(super) fn count_connection_work(&self, identity: Option<&ConnectionIdentity>, requests: u32) {
        let context = &self.context;
        if requests > 0
            && let Some(view) = identity.and_then(|identity| identity.view(&context.snapshot))
        {
            view.tenant.usage.worker(context.index).connection_work.add(requests.into());
        }
    }

    /// The context of a protocol session's commands, with a budget in plain requests.
    pub(super) fn command_context(&self, budget: u32) -> CommandContext<'_> {
        let context = &self.context;
        CommandContext {
            participant: &context.participant,
            snapshot: &context.snapshot,
            now_ms: context.clock.now_ms,
            now_us: context.clock.now_us,
            worker: context.index,
            counters: &context.counters,
            facts: &context.shared.properties,
            requests: Default::default(),
            retired: context.participant.retired(),
            budget,
        }
    }

    /// The work of one piece of a tenant's requests over connections.
    pub(super) fn piece_budget(&self, tenant: u32) -> u32 {
        let context = &self.context;
        if context.recent_tenants.beside(tenant, context.clock.now_us) { CONTENDED_PIECE_WORK } else { PIECE_WORK }
    }
}
