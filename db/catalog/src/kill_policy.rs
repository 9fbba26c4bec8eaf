//! The kill policy: extensions whose calls keep being killed are slowed down, then suspended.
//!
//! A kill costs the worker a signal and the tenant its budget, so repeated kills take little time from other tenants.
//! But they are of no use, and may be the search for a hole. The policy counts, per extension and over the last
//! `kill_window_s` seconds, at least `slow_after_kills` (then `suspend_after_kills`) kills. They must also be at least
//! one in [`KILLS_ONE_IN`] of its calls. So one bad call in ten thousand never counts, at any rate. `Unloaded` and
//! `ReclaimPressure` are not counted.
//!
//! A control thread checks every [`KILL_POLICY_INTERVAL_MS`]. Workers read one word of the extension, and their own
//! snapshot.

use std::collections::VecDeque;

use hashbrown::HashMap;
use sandstorm_net::rpc::KillCause;

use super::suspension::Suspension;
use super::{Directory, Quotas, TenantView};
use crate::limits::{KILL_POLICY_INTERVAL_MS, KILLS_ONE_IN, SLOWED_CALLS_PER_S};
use sandstorm_accounts::PolicyEvent;
use sandstorm_extension::{CodeTier, InvocationTotals, LoadedExtension};
use sandstorm_metrics::cause_name;

/// Calls that ended within one step of the window.
#[derive(Clone, Copy, Debug, Default)]
struct WindowSlot {
    at_ms: u64,
    calls: u64,
    killed: [u64; KillCause::ALL.len()],
}

impl WindowSlot {
    fn kills(&self) -> u64 {
        self.killed.iter().sum()
    }

    fn add(&mut self, other: &WindowSlot) {
        self.calls += other.calls;
        self.killed.iter_mut().zip(other.killed).for_each(|(sum, more)| *sum += more);
    }

    /// Whether there are `limit` kills, and they are a noticeable part of the calls.
    fn reaches(&self, limit: u32) -> bool {
        let kills = self.kills();
        limit > 0 && kills >= u64::from(limit) && kills.saturating_mul(KILLS_ONE_IN) >= self.calls
    }

    fn main_cause(&self) -> &'static str {
        let most = KillCause::ALL.iter().zip(self.killed).max_by_key(|(_, count)| *count);
        most.map_or("unknown", |(cause, _)| cause_name(*cause))
    }
}

/// The window of one extension.
#[derive(Debug, Default)]
struct KillWindow {
    version: u64,
    tier: CodeTier,
    seen: WindowSlot,
    steps: VecDeque<WindowSlot>,
    /// Kills before this time do not count for a suspension: the extension was resumed then.
    resumed_ms: u64,
    suspended: bool,
    slowed: bool,
}

/// Steps of a window.
const WINDOW_SLOTS: u64 = 60;

/// Ended calls, without kills that are the server's own doing, or that another tenant may have caused.
fn finished_calls(counts: &InvocationTotals) -> WindowSlot {
    let mut killed = counts.killed;
    for cause in [KillCause::Unloaded, KillCause::ReclaimPressure] {
        killed[sandstorm_metrics::cause_index(cause)] = 0;
    }
    WindowSlot { at_ms: 0, calls: counts.ok + counts.failed + killed.iter().sum::<u64>(), killed }
}

impl KillWindow {
    /// Adds the calls that ended since the last check.
    fn look(&mut self, (version, tier): (u64, CodeTier), now: WindowSlot, now_ms: u64, window_s: u32) {
        let first = self.version == 0;
        // A version that is built again, for another tier or under other rules, counts from 0.
        if (self.version, self.tier) != (version, tier) || now.calls < self.seen.calls {
            (self.version, self.tier, self.seen) = (version, tier, WindowSlot::default());
        }
        let mut more =
            WindowSlot { at_ms: now_ms, calls: now.calls.saturating_sub(self.seen.calls), ..WindowSlot::default() };
        for (more, (now, seen)) in more.killed.iter_mut().zip(now.killed.iter().zip(self.seen.killed)) {
            *more = now.saturating_sub(seen);
        }
        if first {
            // `more` has the calls since the extension was loaded, and the kills since the last check. No more of those
            // calls count than leave the kills noticeable; later checks are exact.
            more.calls = more.calls.min(more.kills() * KILLS_ONE_IN);
        }
        self.seen = now;
        let window_ms = u64::from(window_s) * 1000;
        let step_ms = (window_ms / WINDOW_SLOTS).max(KILL_POLICY_INTERVAL_MS);
        match self.steps.back_mut() {
            Some(last) if last.at_ms + step_ms > now_ms && last.at_ms > self.resumed_ms => last.add(&more),
            _ if more.calls > 0 => self.steps.push_back(more),
            _ => {}
        }
        while self.steps.front().is_some_and(|step| step.at_ms + window_ms <= now_ms) {
            self.steps.pop_front();
        }
    }

    /// The calls that ended after `from_ms`.
    fn since(&self, from_ms: u64) -> WindowSlot {
        let mut sum = WindowSlot::default();
        self.steps.iter().filter(|step| step.at_ms > from_ms || from_ms == 0).for_each(|step| sum.add(step));
        sum
    }
}

/// Watches all extensions that were ever killed.
#[derive(Debug, Default)]
pub struct KillPolicy {
    /// Kills of all tenants at the last check, and of each tenant by its serial number.
    total: Option<u64>,
    tenants: HashMap<u64, u64>,
    /// By the tenant's serial number, the extension, and the number of a kept version; `None`: the one that is called.
    windows: HashMap<(u64, Box<str>, Option<u64>), KillWindow>,
}

impl KillPolicy {
    /// Checks the calls that ended since the last time. `total` is the kills of all tenants: if it has not changed, no
    /// tenant needs a check for new ones.
    pub fn look(&mut self, directory: &Directory, total: u64, now_ms: u64) {
        if self.total == Some(total) && self.windows.is_empty() {
            return;
        }
        let snapshot = directory.snapshot();
        if self.total != Some(total) {
            self.total = Some(total);
            snapshot.iter().for_each(|view| self.find_killed(view));
        }
        let mut windows = std::mem::take(&mut self.windows);
        let by_serial: HashMap<u64, u32> = snapshot.iter().map(|view| (view.tenant.serial, view.tenant.id)).collect();
        windows.retain(|(serial, name, kept), window| {
            let view = by_serial.get(serial).and_then(|id| snapshot.tenant(*id));
            let watched = |view: &'_ TenantView| match kept {
                None => view.extension(name).cloned(),
                Some(version) => view.kept_versions(name).iter().find(|one| one.version == *version).cloned(),
            };
            let Some((view, extension)) = view.and_then(|view| Some((view, watched(view)?))) else {
                return false;
            };
            let now = finished_calls(&extension.stats.read());
            window.look((extension.version, extension.tier), now, now_ms, view.tenant.quotas.kill_window_s);
            decide(directory, view, &extension, window, now_ms);
            true
        });
        self.windows = windows;
    }

    /// Opens windows for a tenant's extensions that were killed since the last check.
    fn find_killed(&mut self, view: &TenantView) {
        let kills = view.tenant.usage.kills_total();
        let before = if kills == 0 { Some(0) } else { self.tenants.insert(view.tenant.serial, kills) };
        if before == Some(kills) {
            return;
        }
        let lately = kills.saturating_sub(before.unwrap_or(0));
        tracing::info!(tenant = &*view.tenant.name, kills = lately, "calls were killed: see the tenant's kills");
        for (name, extension) in &view.extensions {
            if extension.stats.read().killed_total() > 0 {
                self.windows.entry((view.tenant.serial, name.clone(), None)).or_default();
            }
        }
        for (name, kept) in &view.kept {
            for one in kept.iter().filter(|one| one.stats.read().killed_total() > 0) {
                self.windows.entry((view.tenant.serial, name.clone(), Some(one.version))).or_default();
            }
        }
    }
}

/// Admitted calls a second of a slowed extension: few, but enough for a suspension if they are killed, too.
fn slowed_rate(quotas: &Quotas) -> u32 {
    (quotas.suspend_after_kills.saturating_mul(2) / quotas.kill_window_s.max(1)).max(SLOWED_CALLS_PER_S)
}

fn decide(directory: &Directory, view: &TenantView, extension: &LoadedExtension, window: &mut KillWindow, now_ms: u64) {
    let quotas = &view.tenant.quotas;
    let suspended = view.is_suspended(&extension.name);
    if window.suspended && !suspended {
        window.resumed_ms = now_ms;
    }
    window.suspended = suspended;
    let (all, since) = (window.since(0), window.since(window.resumed_ms));
    let slow = all.reaches(quotas.slow_after_kills);
    let rate = if slow { slowed_rate(quotas) } else { 0 };
    if extension.throttle.set(rate) && slow != window.slowed {
        let why = if slow {
            let why = describe_kills(&all, quotas, "slow_after_kills", quotas.slow_after_kills);
            format!("{why}; {rate} calls a second are admitted")
        } else {
            "its calls are no longer killed so often".to_owned()
        };
        report_event(view, extension, if slow { "slowed" } else { "released" }, now_ms, why);
    }
    window.slowed = slow;
    if !suspended && since.reaches(quotas.suspend_after_kills) {
        let why = describe_kills(&since, quotas, "suspend_after_kills", quotas.suspend_after_kills);
        let suspension = Suspension::new(&extension.name, now_ms, &why);
        // If it was unloaded meanwhile there is nothing to suspend.
        if directory.suspend_by_policy(view.tenant.id, &extension.name, suspension).is_ok() {
            window.suspended = true;
            report_event(view, extension, "suspended", now_ms, why);
        }
    }
}

fn describe_kills(sum: &WindowSlot, quotas: &Quotas, quota: &str, limit: u32) -> String {
    let (kills, calls, mostly, window_s) = (sum.kills(), sum.calls, sum.main_cause(), quotas.kill_window_s);
    format!(
        "{kills} of {calls} calls within {window_s} s were killed, most of them for {mostly} (quota {quota}: {limit})"
    )
}

fn report_event(view: &TenantView, extension: &LoadedExtension, what: &'static str, now_ms: u64, text: String) {
    tracing::warn!(tenant = %view.tenant.name, extension = %extension.name, version = extension.version, "extension {what}: {text}");
    let (extension, version) = (extension.name.to_string(), extension.version);
    view.tenant.usage.record_policy_event(PolicyEvent { extension, version, what, at_ms: now_ms, text });
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW_S: u32 = 60;

    /// An extension with `good` calls and `kills` since it was loaded.
    fn counted(good: u64, kills: u64) -> WindowSlot {
        let mut killed = [0; KillCause::ALL.len()];
        killed[sandstorm_metrics::cause_index(KillCause::Panic)] = kills;
        WindowSlot { at_ms: 0, calls: good + kills, killed }
    }

    #[test]
    fn one_bad_call_in_ten_thousand_never_counts_at_whatever_rate() {
        let mut window = KillWindow::default();
        for look in 1..2_000u64 {
            window.look(
                (1, CodeTier::Native),
                counted(look * 10_000_000, look * 1_000),
                look * KILL_POLICY_INTERVAL_MS,
                WINDOW_S,
            );
            // The first check cannot know the age of the calls: its kills count, up to one check's worth.
            assert!(!window.since(0).reaches(1_001), "look {look}");
        }
        assert!(window.steps.len() as u64 <= WINDOW_SLOTS + 1);
    }

    #[test]
    fn kills_count_while_they_are_a_noticeable_part_and_within_the_window() {
        let mut window = KillWindow::default();
        window.look((1, CodeTier::Native), counted(1_000_000, 5), 1_000, WINDOW_S);
        assert!(window.since(0).reaches(5) && !window.since(0).reaches(6), "all before were good");
        window.look((1, CodeTier::Native), counted(1_000_100, 105), 2_000, WINDOW_S);
        assert!(window.since(0).reaches(105));
        assert_eq!(window.since(0).main_cause(), "panic");
        window.look((1, CodeTier::Native), counted(1_000_100, 105), 61_000, WINDOW_S);
        assert!(window.since(0).reaches(100) && !window.since(0).reaches(101), "the first five are too old");
        window.look((1, CodeTier::Native), counted(1_000_100, 105), 62_000, WINDOW_S);
        assert!(!window.since(0).reaches(1), "and all of them");
        assert!(!window.since(0).reaches(0), "0 is never");
    }

    #[test]
    fn a_new_version_goes_on_where_the_old_one_was_and_a_resumed_one_begins_anew() {
        let mut window = KillWindow::default();
        window.look((1, CodeTier::Native), counted(0, 50), 1_000, WINDOW_S);
        window.look((2, CodeTier::Native), counted(0, 60), 2_000, WINDOW_S);
        assert!(window.since(0).reaches(110), "pushing again does not help");
        window.resumed_ms = 2_000;
        assert!(!window.since(window.resumed_ms).reaches(1));
        window.look((2, CodeTier::Native), counted(0, 70), 2_100, WINDOW_S);
        assert!(window.since(window.resumed_ms).reaches(10) && !window.since(window.resumed_ms).reaches(11));
        assert!(window.since(0).reaches(120), "it stays slow for a while");
    }

    #[test]
    fn a_version_that_is_built_again_is_counted_from_its_first_call() {
        let mut window = KillWindow::default();
        window.look((1, CodeTier::Native), counted(0, 50), 1_000, WINDOW_S);
        window.look((1, CodeTier::Sandboxed), counted(0, 50), 2_000, WINDOW_S);
        assert!(window.since(0).reaches(100), "another tier");
        window.look((1, CodeTier::Sandboxed), counted(0, 10), 3_000, WINDOW_S);
        assert!(window.since(0).reaches(110), "the same tier");
    }

    #[test]
    fn what_the_server_ended_for_reasons_of_its_own_is_not_held_against_it() {
        let mut killed = [0; KillCause::ALL.len()];
        killed[sandstorm_metrics::cause_index(KillCause::Unloaded)] = 7;
        killed[sandstorm_metrics::cause_index(KillCause::ReclaimPressure)] = 9;
        let counts = InvocationTotals { ok: 3, killed, ..InvocationTotals::default() };
        assert_eq!((finished_calls(&counts).kills(), finished_calls(&counts).calls), (0, 3));
    }
}
