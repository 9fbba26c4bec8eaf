//! Rebuilds under way, and the last ones that ended.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::super::error::ApiError;
use super::super::types::{RebuildResponse, RebuiltExtensionResponse};
use super::super::{ControlState, now_ms};
use super::steps::{self, RebuildPurpose};
use crate::limits::{QUEUE_RETRY, REBUILD_RESULTS, REBUILDS_KEPT, REBUILDS_RUNNING};
use sandstorm_accounts::TenantUsage;
use sandstorm_builder::BuildPermit;
use sandstorm_catalog::TenantView;

/// All rebuilds that are known.
#[derive(Debug, Default)]
pub(in super::super) struct RebuildJobs {
    state: Mutex<RebuildList>,
}

#[derive(Debug, Default)]
struct RebuildList {
    last_id: u64,
    /// Oldest first.
    jobs: VecDeque<Arc<Mutex<RebuildResponse>>>,
}

/// A rebuild that has begun; it is over when this is dropped.
#[derive(Debug)]
pub(in super::super) struct JobHandle(Arc<Mutex<RebuildResponse>>);

impl RebuildJobs {
    /// Begins a rebuild.
    pub(in super::super) fn open(&self, reason: String) -> Result<JobHandle, ApiError> {
        let mut state = self.state.lock();
        let running = state.jobs.iter().filter(|job| !job.lock().done).count();
        if running >= REBUILDS_RUNNING {
            return Err(ApiError::busy(format!("{running} rebuilds are under way, as many as there may be")));
        }
        if state.jobs.len() >= REBUILDS_KEPT
            && let Some(oldest) = state.jobs.iter().position(|job| job.lock().done)
        {
            state.jobs.remove(oldest);
        }
        state.last_id += 1;
        let (id, started_at_ms) = (state.last_id, now_ms());
        let job =
            RebuildResponse { id, reason, started_at_ms, done: false, waiting: 0, results: Vec::new(), unlisted: 0 };
        let job = Arc::new(Mutex::new(job));
        state.jobs.push_back(job.clone());
        Ok(JobHandle(job))
    }

    /// The state of a rebuild; `None` if there is none of that number, or not any more.
    pub(super) fn show(&self, id: u64) -> Option<RebuildResponse> {
        self.state.lock().jobs.iter().map(|job| job.lock()).find(|job| job.id == id).map(|job| job.clone())
    }
}

impl JobHandle {
    /// Its number.
    pub(super) fn id(&self) -> u64 {
        self.0.lock().id
    }

    /// Its state.
    pub(super) fn show(&self) -> RebuildResponse {
        self.0.lock().clone()
    }

    /// Adds a result.
    pub(super) fn add(&self, result: RebuiltExtensionResponse) {
        let mut job = self.0.lock();
        if job.results.len() < REBUILD_RESULTS {
            job.results.push(result);
        } else {
            job.unlisted += 1;
        }
    }

    fn expect(&self, extensions: usize) {
        self.0.lock().waiting += extensions as u64;
    }

    fn took_turn(&self) {
        let mut job = self.0.lock();
        job.waiting = job.waiting.saturating_sub(1);
    }
}

impl Drop for JobHandle {
    fn drop(&mut self) {
        self.0.lock().done = true;
    }
}

/// Extensions of one tenant.
pub(super) struct TenantTargets {
    pub(super) tenant: u32,
    tenant_name: String,
    /// Tells the tenant from another one that is created later under its id.
    pub(super) usage: Arc<TenantUsage>,
    pub(super) names: Vec<String>,
}

impl TenantTargets {
    pub(super) fn of(view: &TenantView, names: Vec<String>) -> TenantTargets {
        let tenant = &view.tenant;
        let (usage, tenant_name) = (tenant.usage.clone(), tenant.name.clone());
        TenantTargets { tenant: tenant.id, tenant_name, usage, names }
    }
}

/// What a rebuild does, with which extensions.
pub(super) struct RebuildWork {
    pub(super) targets: Vec<TenantTargets>,
    pub(super) purpose: RebuildPurpose,
}

/// Runs a rebuild on the control port's runtime. It goes on though the request that asked for it has ended.
pub(super) fn spawn(control: &Arc<ControlState>, job: JobHandle, work: RebuildWork) {
    job.expect(work.targets.iter().map(|of| of.names.len()).sum());
    tokio::spawn(run(control.clone(), Arc::new(job), work));
}

async fn run(control: Arc<ControlState>, job: Arc<JobHandle>, work: RebuildWork) {
    let RebuildWork { targets, purpose } = work;
    let purpose = Arc::new(purpose);
    let slots = control.artifact_sources.builder.as_ref().map_or(1, |builder| builder.slots().max(1));
    let (mut running, mut is_whole) = (JoinSet::new(), true);
    for of in targets {
        while running.len() >= slots {
            is_whole &= matches!(running.join_next().await, Some(Ok(true)));
        }
        running.spawn(run_tenant(control.clone(), job.clone(), of, purpose.clone()));
    }
    while let Some(ended) = running.join_next().await {
        is_whole &= matches!(ended, Ok(true));
    }
    if let (true, RebuildPurpose::Recheck { denied, .. }) = (is_whole, &*purpose) {
        control.deny.set_checked(denied);
    }
}

/// One extension of a tenant after the other, each in a turn of its own: pushes of the tenant come in between. Returns
/// whether all had their turn; not so if the server stops.
async fn run_tenant(
    control: Arc<ControlState>,
    job: Arc<JobHandle>,
    of: TenantTargets,
    purpose: Arc<RebuildPurpose>,
) -> bool {
    let of = Arc::new(of);
    for at in 0..of.names.len() {
        let permit = build_permit(&control, of.tenant).await;
        job.took_turn();
        let (doing, with, purpose) = (of.clone(), control.clone(), purpose.clone());
        let done = tokio::task::spawn_blocking(move || {
            let _held = permit;
            steps::rebuild(&with, doing.tenant, &doing.usage, &doing.names[at], &purpose)
        });
        match done.await {
            Ok(Some(result)) => job.add(result),
            Ok(None) => job.add(steps::gone(&of.tenant_name, &of.names[at])),
            // The server stops.
            Err(error) if error.is_cancelled() => return false,
            // It panicked: what was to be replaced must not go on.
            Err(_) => job.add(steps::suspend_after_panic(&control, of.tenant, &of.tenant_name, &of.names[at])),
        }
    }
    true
}

/// The tenant's turn, however long it takes: a rebuild gives way to pushes where the queue is full.
async fn build_permit(control: &ControlState, tenant: u32) -> BuildPermit {
    loop {
        if let Ok(ticket) = control.queue.enter(tenant, u32::MAX)
            && let Ok(permit) = ticket.turn().await
        {
            return permit;
        }
        tokio::time::sleep(QUEUE_RETRY).await;
    }
}
