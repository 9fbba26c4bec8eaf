//! Answers which calls of a tenant are under way at a worker, and where.

use std::sync::Arc;

use sandstorm_extension::limits::CONTENDED_SLICE_US;
use sandstorm_runtime::{Engine, PositionQuery};
use sandstorm_store::spill::ColdMiss;

use super::call_look::{CallLook, CallUnderWay, WorkerCalls};
use super::context::WorkerContext;
use super::invocations::{ColdTask, InvocationScheduler};
use super::tasks::{InvocationTask, UNKNOWN_PEER};
use crate::limits::{CALLS_LOOKED_AT, CALLS_SHOWN};

/// What has been found so far.
struct CallSurvey<'a> {
    context: &'a WorkerContext,
    look: &'a CallLook,
    now_ns: u64,
    found: WorkerCalls,
    looked_at: usize,
    /// CPU time of the polls that were made for it.
    used_ns: u64,
    /// The tenant's weight, where it has calls here.
    weight: u32,
}

impl InvocationScheduler {
    /// Tells which calls are meant and where they are. Those on offer to another worker are not among them.
    #[cold]
    pub(super) fn locate_calls(&mut self, context: &WorkerContext, look: &CallLook) -> WorkerCalls {
        let InvocationScheduler { engine, queue, cold, .. } = self;
        engine.turn();
        // Polls of calls that turn out to go on end soon.
        engine.limit_slices(Some(CONTENDED_SLICE_US));
        let (now_ns, found) = (context.clock.read_ns(), WorkerCalls::default());
        let mut survey = CallSurvey { context, look, now_ns, found, looked_at: 0, used_ns: 0, weight: 1 };
        for mut waiting in std::mem::take(cold) {
            let (tenant, weight) = waiting.task.tenant_and_weight();
            if !survey.add(engine, &mut waiting.task, Some(waiting.ticket.has_backing())) {
                cold.push(waiting);
                continue;
            }
            match meet_again(context, waiting) {
                Ok(waiting) => cold.push(waiting),
                Err(task) => queue.push(tenant, weight, UNKNOWN_PEER, task),
            }
        }
        queue.for_each_of(look.tenant, |task| {
            survey.add(engine, task, None);
        });
        let CallSurvey { found, used_ns, weight, .. } = survey;
        if used_ns > 0 {
            queue.charge_polls(look.tenant, weight, used_ns);
            context.counters.invocation_cpu_ns.add(used_ns);
        }
        found
    }
}

/// Has a call wait on that was polled meanwhile; else it goes on.
fn meet_again(context: &WorkerContext, waiting: ColdTask) -> Result<ColdTask, InvocationTask> {
    let ColdTask { ticket, mut task, since_ns } = waiting;
    let misses = task.invocation.take_cold();
    if misses.is_empty() {
        let waited_ns = context.clock.read_ns().saturating_sub(since_ns);
        task.invocation.note_cold_wait(waited_ns, ticket.has_backing());
        return Err(task);
    }
    if !ticket.is_done() {
        // What it waits for is being read.
        return Ok(ColdTask { ticket, task, since_ns });
    }
    let (shared, worker) = (Arc::clone(&context.shared), context.index);
    let (reader, _) = task.tenant_and_weight();
    let ticket = ColdMiss::fetch(misses, reader, move || shared.note_arrival(worker));
    if let Some(why) = ticket.error() {
        task.invocation.set_cold_failed(why);
    }
    Ok(ColdTask { ticket, task, since_ns })
}

impl CallSurvey<'_> {
    /// Adds a call, if it is meant. Returns whether it was polled for that. `has_backing`: it waits for cold records,
    /// and of what kind.
    fn add(&mut self, engine: &mut Engine, task: &mut InvocationTask, has_backing: Option<bool>) -> bool {
        let called = task.invocation.extension().map(|called| &*called.name);
        if !task.invocation.view().is_some_and(|view| self.look.is_about(view, called)) {
            return false;
        }
        (_, self.weight) = task.tenant_and_weight();
        if self.found.calls.len() >= CALLS_SHOWN {
            self.found.more += 1;
            return false;
        }
        let with_places = self.look.with_places && self.looked_at < CALLS_LOOKED_AT;
        let age_ns = self.now_ns.saturating_sub(task.received_ns());
        let invocation = &mut task.invocation;
        let (before_ns, trace, paused_ns) = (invocation.cpu_ns(), invocation.trace(), invocation.paused_ns());
        let now_ms = self.context.clock.now_ms;
        let query = PositionQuery { now_ms, is_cold: has_backing.is_some(), with_places };
        let levels = engine.positions(&self.context.participant, invocation, query);
        self.used_ns += invocation.cpu_ns() - before_ns;
        let looks = levels.iter().filter(|level| level.is_looked_at).count();
        self.looked_at += looks;
        self.found.calls.push(CallUnderWay {
            worker: self.context.index as u32,
            age_ns,
            waiting_ns: if paused_ns == 0 { age_ns } else { paused_ns.min(age_ns) },
            awaits_backing: has_backing == Some(true),
            turns: trace.polls,
            switches: trace.switches,
            cpu_ns: before_ns,
            levels,
        });
        looks > 0
    }
}
