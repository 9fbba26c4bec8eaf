//! Events that are found by polling: kills, the server's measures against extensions, early drop.
//!
//! Workers do not record events. The control port reads the counters of each tenant from time to time, so a tenant
//! whose calls are killed by the thousand makes one event a second for each extension and cause. The log folds these.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use parking_lot::Mutex;
use sandstorm_accounts::{HomeMoveRecord, KillRecord, NewEntries, PolicyEvent};
use sandstorm_catalog::{Directory, TenantView};
use sandstorm_metrics::cause_name;

use super::code::EventCode;
use super::event::NewEvent;
use super::log::EventLog;
use crate::limits::{EVENT_INTERVAL_MS, UNTHROTTLED_AFTER_MS};

/// What was seen of each tenant when the collector looked last.
#[derive(Debug, Default)]
pub(crate) struct EventCollector(Mutex<CollectorState>);

#[derive(Debug, Default)]
struct CollectorState {
    looked_ms: u64,
    tenants: HashMap<u32, SeenTenant>,
}

/// What was seen of a tenant.
#[derive(Debug, Default)]
struct SeenTenant {
    name: String,
    /// The numbers of its latest kill, policy event and move of its home.
    kill: u64,
    policy_event: u64,
    home_move: u64,
    /// When datagrams of it were last dropped early, in milliseconds since 1970; `None`: it is not throttled.
    throttled_ms: Option<u64>,
}

impl EventCollector {
    /// Records what has happened since the last look, if that was not just now.
    pub(crate) fn look(&self, directory: &Directory, log: &EventLog, now_ms: u64) {
        let mut state = self.0.lock();
        // A clock that was set back does not stop it.
        if now_ms.abs_diff(state.looked_ms) < EVENT_INTERVAL_MS {
            return;
        }
        state.looked_ms = now_ms;
        let snapshot = directory.snapshot();
        state.tenants.retain(|id, seen| snapshot.tenant(*id).is_some_and(|view| view.tenant.name == seen.name));
        for view in snapshot.iter() {
            let seen = state
                .tenants
                .entry(view.tenant.id)
                .or_insert_with(|| SeenTenant { name: view.tenant.name.clone(), ..SeenTenant::default() });
            look_at(view, seen, log, now_ms);
        }
        log.tell_folded();
    }
}

fn look_at(view: &TenantView, seen: &mut SeenTenant, log: &EventLog, now_ms: u64) {
    let (tenant, usage) = (&view.tenant, &view.tenant.usage);
    let event = |code: EventCode| NewEvent::of_server(code).about(&tenant.name, tenant.id);
    // A tenant that was made anew begins at none.
    let kills = usage.kills_after(seen.kill);
    seen.kill = kills.last;
    record_kills(view, kills, log);
    let policy_events = usage.policy_events_after(seen.policy_event);
    seen.policy_event = policy_events.last;
    for PolicyEvent { extension, version, what, text, .. } in policy_events.entries {
        let (subject, text) = (Some(extension), format!("v{version}: {text}"));
        log.record(NewEvent { subject, text, ..event(code_of(what)) });
    }
    let home_moves = usage.home_moves_after(seen.home_move);
    seen.home_move = home_moves.last;
    for moved in home_moves.entries {
        log.record(NewEvent { text: home_moved_text(&moved), ..event(EventCode::TenantHomeMoved) });
    }
    let is_throttled = usage.dropped_early_per_mille() > 0;
    match (is_throttled, seen.throttled_ms) {
        (true, before) => {
            seen.throttled_ms = Some(now_ms);
            if before.is_none() {
                let text = throttled_text(tenant.quotas.requests_per_s, usage.dropped_early_per_mille());
                log.record(NewEvent { text, ..event(EventCode::TenantThrottled) });
            }
        }
        (false, Some(since_ms)) if now_ms.saturating_sub(since_ms) >= UNTHROTTLED_AFTER_MS => {
            seen.throttled_ms = None;
            log.record(event(EventCode::TenantUnthrottled));
        }
        (false, _) => {}
    }
}

/// Where a tenant's home was moved, and why.
fn home_moved_text(moved: &HomeMoveRecord) -> String {
    let HomeMoveRecord { from, to, per_mille, from_per_mille, to_per_mille } = moved;
    let percent = |per_mille: &u32| format!("{} %", (per_mille + 5) / 10);
    format!(
        "from worker {from}, whose tenants took {} of a worker's time, to worker {to}, whose tenants took {}; it took {}",
        percent(from_per_mille),
        percent(to_per_mille),
        percent(per_mille)
    )
}

/// Why datagrams of a tenant are dropped early.
fn throttled_text(requests_per_s: u32, per_mille: u64) -> String {
    let why = match requests_per_s {
        0 => "it sends more than is served, and has no quota requests_per_s".to_owned(),
        most => format!("it sends more than its quota requests_per_s = {most}, or than is served"),
    };
    format!("{}.{} % of its datagrams are dropped: {why}", per_mille / 10, per_mille % 10)
}

/// The code of a measure of the server against an extension.
fn code_of(what: &str) -> EventCode {
    match what {
        "slowed" => EventCode::ExtensionSlowed,
        "released" => EventCode::ExtensionReleased,
        "suspended" => EventCode::ExtensionSuspended,
        "rolled back" => EventCode::ExtensionDeploymentEnded,
        "left out" => EventCode::ExtensionLeftOut,
        _ => EventCode::ExtensionMoved,
    }
}

/// Records kills that are new: one event for each extension, version and cause. Of those that are remembered no more
/// only the number is known.
fn record_kills(view: &TenantView, kills: NewEntries<KillRecord>, log: &EventLog) {
    let tenant = &view.tenant;
    let NewEntries { entries, count: new_kills, .. } = kills;
    let mut kinds: BTreeMap<(String, u64, &'static str), (u64, String)> = BTreeMap::new();
    let known = entries.len() as u64;
    for kill in entries.into_iter().rev() {
        // The newest text is the first.
        let kind = (kill.extension, kill.version, cause_name(kill.cause));
        kinds.entry(kind).or_insert_with(|| (0, kill.text)).0 += 1;
    }
    let event = || NewEvent::of_server(EventCode::CallKilled).about(&tenant.name, tenant.id);
    for ((extension, version, cause), (count, text)) in kinds {
        let (subject, text) = (Some(extension), format!("v{version}, {cause}: {text}"));
        log.record(NewEvent { subject, count, text, ..event() });
    }
    if new_kills > known {
        let text = "more were ended at the same time, of which only the number is known".to_owned();
        log.record(NewEvent { count: new_kills - known, text, ..event() });
    }
}

#[cfg(test)]
mod tests {
    use sandstorm_catalog::{NewTenant, QuotaChanges};
    use sandstorm_store::Epochs;

    use super::*;
    use crate::events::event::EventFilter;

    #[test]
    fn a_home_that_was_moved_is_told_once_with_the_loads() {
        let (directory, log) = (Directory::new(Epochs::new()), EventLog::in_memory());
        directory.create_tenant(NewTenant::named("shop")).expect("a tenant");
        let usage =
            |name: &str| std::sync::Arc::clone(&directory.snapshot().by_name(name).expect("a tenant").tenant.usage);
        let moved = HomeMoveRecord { from: 1, to: 0, per_mille: 424, from_per_mille: 976, to_per_mille: 15 };
        usage("shop").record_home_move(moved);
        let collector = EventCollector::default();
        (1..4).for_each(|look| collector.look(&directory, &log, look * 10_000));
        let told = log.read(&EventFilter::default(), 100).events;
        let told: Vec<_> = told.iter().map(|one| (one.code, one.tenant.as_deref(), &*one.text)).collect();
        let text = "from worker 1, whose tenants took 98 % of a worker's time, to worker 0, whose tenants took 2 %; it \
                    took 42 %";
        assert_eq!(told, [(EventCode::TenantHomeMoved, Some("shop"), text)]);
    }

    #[test]
    fn a_tenant_that_is_throttled_is_told_with_its_part_and_its_quota_and_so_is_the_end() {
        let (directory, log) = (Directory::new(Epochs::new()), EventLog::in_memory());
        let quotas = QuotaChanges { requests_per_s: Some(1_000), ..QuotaChanges::default() };
        directory.create_tenant(NewTenant { quotas, ..NewTenant::named("bounded") }).expect("a tenant");
        directory.create_tenant(NewTenant::named("free")).expect("a tenant");
        let drops = |name: &str, per_mille: u64| {
            let view = std::sync::Arc::clone(directory.snapshot().by_name(name).expect("a tenant"));
            view.tenant.usage.worker(0).dropped_early_per_mille.set(per_mille);
        };
        let collector = EventCollector::default();
        let mut now_ms = 1_000_000;
        let mut look = |passed_ms: u64| {
            now_ms += passed_ms;
            collector.look(&directory, &log, now_ms);
        };
        drops("bounded", 125);
        look(0);
        drops("free", 1_000);
        // It goes on, which is one event.
        look(1_000);
        look(1_000);
        drops("bounded", 0);
        drops("free", 0);
        look(UNTHROTTLED_AFTER_MS - 1);
        look(UNTHROTTLED_AFTER_MS);
        let told: Vec<(EventCode, Option<String>, String)> = log
            .read(&EventFilter::default(), 100)
            .events
            .into_iter()
            .map(|event| (event.code, event.tenant, event.text))
            .collect();
        let of = |code, tenant: &str, text: &str| (code, Some(tenant.to_owned()), text.to_owned());
        let bounded = "12.5 % of its datagrams are dropped: it sends more than its quota requests_per_s = 1000, or \
                       than is served";
        let free = "100.0 % of its datagrams are dropped: it sends more than is served, and has no quota \
                    requests_per_s";
        assert_eq!(
            told[..2],
            [of(EventCode::TenantThrottled, "bounded", bounded), of(EventCode::TenantThrottled, "free", free)]
        );
        let mut ended: Vec<_> = told[2..].iter().map(|(code, tenant, _)| (*code, tenant.clone())).collect();
        ended.sort_by_key(|(_, tenant)| tenant.clone());
        let end = |tenant: &str| (EventCode::TenantUnthrottled, Some(tenant.to_owned()));
        assert_eq!(ended, [end("bounded"), end("free")]);
    }
}
