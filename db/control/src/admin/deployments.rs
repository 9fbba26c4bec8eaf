//! Trying a version on a share of the calls: the route, and the monitor.
//!
//! The monitor compares, several times a second, what the tried version and the other one did within the last
//! [`DEPLOY_WINDOW_MS`]. A version that is killed or fails more often, or is slower, by more than the limits say, gets
//! no calls any more; the tenant is told why, and the event says so.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::body::JsonBody;
use super::caller::RequestCaller;
use super::error::ApiError;
use super::event_scribe::EventNote;
use super::extension_lookup::find_extension;
use super::types::DeployRequest;
use super::{ControlState, now_ms, versions};
use crate::limits::{
    DEPLOY_CALLS, DEPLOY_FAILURES, DEPLOY_JUDGE_MS, DEPLOY_KILLS, DEPLOY_MORE_PERCENT, DEPLOY_SLOWER_NS,
    DEPLOY_WINDOW_MS, DEPLOY_WORSE_BY,
};
use sandstorm_accounts::PolicyEvent;
use sandstorm_catalog::{Deployment, TenantView};
use sandstorm_extension::LoadedExtension;
use sandstorm_metrics::histogram::DurationCounts;

/// `PUT /v1/tenants/{tenant}/extensions/{name}/deployment`
pub(super) async fn deploy(
    State(control): State<Arc<ControlState>>,
    caller: RequestCaller,
    Path((tenant, name)): Path<(String, String)>,
    JsonBody(DeployRequest { version, percent }): JsonBody<DeployRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let view = caller.authorize_change(&control, &tenant)?;
    let id = view.tenant.id;
    let called = find_extension(&view, &name)?.version;
    if version == called && percent < 100 {
        let message = format!("version {version} of {name:?} is called already, by all whose key is in no share");
        return Err(ApiError::invalid(message)
            .hint("roll back first, or push with --stage, which keeps a version without calling it"));
    }
    let text = match percent {
        100 if version == called => {
            control.directory.deploy_version(id, &name, Deployment { version, percent: 0, since_ms: 0 })?;
            format!("v{version} has all calls")
        }
        100 => {
            versions::activate(&control, &view, &name, version).await?;
            format!("v{version} has all calls, v{called} none")
        }
        0 => {
            control.directory.deploy_version(id, &name, Deployment { version, percent, since_ms: 0 })?;
            format!("v{version} has no calls, v{called} all")
        }
        _ => {
            let deployment = Deployment { version, percent, since_ms: now_ms() };
            control.directory.deploy_version(id, &name, deployment)?;
            format!("v{version} has {percent} % of the keys, v{called} the others")
        }
    };
    let now = control.directory.snapshot().find(id)?.clone();
    let shown = control.history.show_in_full(&now, &*find_extension(&now, &name)?);
    Ok((Extension(EventNote { text, ..EventNote::default() }), Json(shown)))
}

/// What a version did up to a moment.
#[derive(Clone, Debug, Default)]
struct VersionCounts {
    killed: u64,
    failed: u64,
    ended: u64,
    total: DurationCounts,
}

impl VersionCounts {
    fn of(extension: &LoadedExtension) -> VersionCounts {
        let stats = extension.stats.read();
        let (killed, failed) = (stats.killed_total(), stats.failed);
        VersionCounts { killed, failed, ended: stats.ok + failed + killed, total: extension.latency.read().total }
    }

    fn since(&self, before: &VersionCounts) -> VersionCounts {
        VersionCounts {
            killed: self.killed.saturating_sub(before.killed),
            failed: self.failed.saturating_sub(before.failed),
            ended: self.ended.saturating_sub(before.ended),
            total: self.total.since(&before.total),
        }
    }
}

/// The reason that a version gets no calls any more: the rest of a sentence. `None`: it may go on.
fn verdict(tried: &VersionCounts, other: &VersionCounts) -> Option<String> {
    // More than so many times the other's part, and noticeably more of a hundred calls.
    let is_worse = |own: u64, others: u64| {
        let (own_parts, other_parts) = (own * other.ended.max(1), others * tried.ended.max(1));
        let more =
            own_parts.saturating_sub(other_parts) * 100 > DEPLOY_MORE_PERCENT * other.ended.max(1) * tried.ended.max(1);
        own_parts > DEPLOY_WORSE_BY * other_parts && more
    };
    let counts = |what: &str, own: u64, others: u64| {
        format!("{own} of {} calls {what}, of the other version {others} of {}", tried.ended, other.ended)
    };
    if tried.killed >= DEPLOY_KILLS && is_worse(tried.killed, other.killed) {
        return Some(counts("were killed", tried.killed, other.killed));
    }
    if tried.failed >= DEPLOY_FAILURES && is_worse(tried.failed, other.failed) {
        return Some(counts("failed", tried.failed, other.failed));
    }
    if tried.total.count().min(other.total.count()) < DEPLOY_CALLS {
        return None;
    }
    let [own_ns, other_ns] = [tried, other].map(|counts| counts.total.quantile_ns(990_000));
    let is_slower = own_ns > DEPLOY_WORSE_BY * other_ns && own_ns > other_ns + DEPLOY_SLOWER_NS;
    is_slower.then(|| format!("its p99 is {} us, that of the other version {} us", own_ns / 1_000, other_ns / 1_000))
}

/// The counts of both versions at the looks within the window, and since when.
#[derive(Debug)]
struct Trial {
    of: Deployment,
    /// The version that the others call.
    current: u64,
    looks: VecDeque<(u64, VersionCounts, VersionCounts)>,
}

/// The monitor: see the head of this file.
#[derive(Debug, Default)]
pub(super) struct DeploymentMonitor(Mutex<MonitorState>);

#[derive(Debug, Default)]
struct MonitorState {
    looked_ms: u64,
    /// By the tenant's serial number and the extension.
    trials: HashMap<(u64, Box<str>), Trial>,
}

impl DeploymentMonitor {
    /// Looks at all deployments, if that was not done just now.
    pub(super) fn look(&self, control: &ControlState, now_ms: u64) {
        let mut state = self.0.lock();
        // A clock that was set back does not stop it.
        if now_ms.abs_diff(state.looked_ms) < DEPLOY_JUDGE_MS {
            return;
        }
        state.looked_ms = now_ms;
        let snapshot = control.directory.snapshot();
        let mut trials = std::mem::take(&mut state.trials);
        for view in snapshot.iter().filter(|view| !view.deployments.is_empty()) {
            for (name, deployment) in &view.deployments {
                let key = (view.tenant.serial, name.clone());
                let before = trials.remove(&key);
                if let Some(trial) = look_at(control, view, name, *deployment, before, now_ms) {
                    state.trials.insert(key, trial);
                }
            }
        }
    }
}

/// Judges one deployment. `None`: there is nothing to monitor, or it is over.
fn look_at(
    control: &ControlState,
    view: &TenantView,
    name: &str,
    of: Deployment,
    before: Option<Trial>,
    now_ms: u64,
) -> Option<Trial> {
    let other = view.extension(name)?;
    let tried = view.callable_version(name, of.version).ok()?;
    let same = |trial: &Trial| trial.of == of && trial.current == other.version;
    let mut trial = before.filter(same).unwrap_or_else(|| Trial { of, current: other.version, looks: VecDeque::new() });
    let now = (now_ms, VersionCounts::of(tried), VersionCounts::of(other));
    while trial.looks.len() > 1 && trial.looks.front().is_some_and(|look| look.0 + DEPLOY_WINDOW_MS < now_ms) {
        trial.looks.pop_front();
    }
    let why = trial.looks.front().and_then(|(_, tried, other)| verdict(&now.1.since(tried), &now.2.since(other)));
    trial.looks.push_back(now);
    let Some(why) = why else { return Some(trial) };
    let version = of.version;
    let text =
        format!("it had {} % of the keys and has none now: within {} s {why}", of.percent, DEPLOY_WINDOW_MS / 1_000);
    if matches!(control.directory.end_deployment(view.tenant.id, name, of), Ok(true)) {
        tracing::warn!(tenant = &*view.tenant.name, extension = name, version, "deployment ended: {text}");
        let (extension, what) = (name.to_owned(), "rolled back");
        view.tenant.usage.record_policy_event(PolicyEvent { extension, version, what, at_ms: now_ms, text });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(ended: u64, killed: u64, failed: u64) -> VersionCounts {
        VersionCounts { killed, failed, ended, total: DurationCounts::default() }
    }

    #[test]
    fn a_version_that_is_killed_or_fails_more_often_than_the_other_is_not_called_any_more() {
        let good = counts(10_000, 0, 100);
        for (tried, is_ended) in [
            (counts(100, DEPLOY_KILLS, 0), true),
            (counts(100, DEPLOY_KILLS - 1, 0), false),
            (counts(100_000, DEPLOY_KILLS, 0), false),
            (counts(1_000, 0, 10), false),
            (counts(1_000, 0, 15), false),
            (counts(1_000, 0, 40), true),
        ] {
            assert_eq!(verdict(&tried, &good).is_some(), is_ended, "{tried:?}");
        }
        assert!(verdict(&counts(100, 50, 50), &counts(100, 50, 50)).is_none(), "both are as bad");
        assert!(verdict(&counts(100, 50, 0), &counts(0, 0, 0)).is_some(), "all calls go to it");
        let why = verdict(&counts(100, 9, 0), &good).unwrap_or_default();
        assert_eq!(why, "9 of 100 calls were killed, of the other version 0 of 10000");
    }

    fn timed(calls: u64, duration_ns: u64) -> VersionCounts {
        let mut total = DurationCounts::default();
        (0..calls).for_each(|_| total.note(duration_ns));
        VersionCounts { total, ..counts(calls, 0, 0) }
    }

    #[test]
    fn a_version_whose_p99_is_much_longer_than_the_others_is_not_called_any_more() {
        let current = timed(10 * DEPLOY_CALLS, 4 * DEPLOY_SLOWER_NS);
        for (tried, is_ended) in [
            (timed(DEPLOY_CALLS, 20 * DEPLOY_SLOWER_NS), true),
            (timed(DEPLOY_CALLS - 1, 20 * DEPLOY_SLOWER_NS), false),
            (timed(DEPLOY_CALLS, 6 * DEPLOY_SLOWER_NS), false),
            (timed(DEPLOY_CALLS, 4 * DEPLOY_SLOWER_NS), false),
        ] {
            let why = verdict(&tried, &current);
            assert_eq!(why.is_some(), is_ended, "{why:?}");
        }
        // Many times as long, and not noticeably longer.
        let short = timed(DEPLOY_CALLS, DEPLOY_SLOWER_NS / 100);
        assert_eq!(verdict(&timed(DEPLOY_CALLS, DEPLOY_SLOWER_NS / 2), &short), None);
        // One slow call of fifty is the p99, one of two hundred is not.
        for (slow, is_ended) in [(DEPLOY_CALLS / 50, true), (DEPLOY_CALLS / 200, false)] {
            let mut tried = timed(DEPLOY_CALLS, DEPLOY_SLOWER_NS);
            (0..slow).for_each(|_| tried.total.note(100 * DEPLOY_SLOWER_NS));
            assert_eq!(verdict(&tried, &current).is_some(), is_ended, "{slow}");
        }
    }
}
