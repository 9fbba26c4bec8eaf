//! Triggers of a server of a cluster. All servers agree on what they are, in the directory; each has its own position,
//! dead letters and counts, and makes the calls for the changes in its own log. Calls of a schedule are made by the
//! server that owns the slot of the trigger's name.
//!
//! A trigger that an earlier version has made is of its own server, and stays so until one of its name is agreed on.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::{
    ActiveTrigger, DeclaredTrigger, KeptTrigger, PAUSED, RunnerMessage, SharedRunner, StoredTrigger, TriggerChange,
    TriggerDefinition, TriggerError, TriggerRunner, TriggerStatus, clock_ms,
};
use crate::limits::{TRIGGER_AGREED_LOG, TRIGGER_AGREED_LOOK, TRIGGER_AGREED_PAUSE_MAX, TRIGGERS, TRIGGERS_PER_TENANT};
use crate::record_sample::random_seed;
use sandstorm_catalog::{AgreedTrigger, AgreedTriggers, TenantView};

impl TriggerRunner {
    /// Whether all servers of the cluster agree on a trigger, or would on one that is made.
    pub(super) fn is_agreed(&self, tenant: u32, name: &str) -> bool {
        let own = self.shared.store.find(tenant);
        let is_local = own.and_then(|own| own.read(name, |trigger| trigger.agreed.is_none())).unwrap_or(false);
        self.shared.is_in_cluster() && !is_local
    }

    /// Makes a trigger at all servers.
    pub(super) fn create_agreed(&self, tenant: u32, spec: &TriggerDefinition) -> Result<TriggerStatus, TriggerError> {
        let definition = text_of(spec)?;
        self.agree(tenant, |all| match all.get(&spec.name) {
            Some(_) => Err(TriggerError::Exists(spec.name.clone())),
            None => self.insert(tenant, all, &spec.name, &definition),
        })?;
        self.show(tenant, &spec.name)
    }

    /// Makes a trigger that a manifest declares at all servers, or changes it.
    pub(super) fn declare_agreed(
        &self,
        view: &TenantView,
        spec: &TriggerDefinition,
    ) -> Result<DeclaredTrigger, TriggerError> {
        let (tenant, name) = (view.tenant.id, &spec.name);
        let snapshot = self.shared.directory.snapshot();
        let known = snapshot.tenant(tenant).and_then(|view| view.triggers.get(name));
        if known.map(definition_of).transpose()?.as_ref() == Some(spec) {
            return Ok(DeclaredTrigger::Unchanged);
        }
        self.start_position(view, spec)?;
        self.check_call(tenant, spec)?;
        let definition = text_of(spec)?;
        self.agree(tenant, |all| match all.get_mut(name) {
            None => self.insert(tenant, all, name, &definition).map(|()| DeclaredTrigger::Created),
            Some(known) if definition_of(known)?.called().0 != spec.called().0 => {
                Err(TriggerError::Exists(name.clone()))
            }
            Some(known) => {
                known.definition.clone_from(&definition);
                Ok(DeclaredTrigger::Changed)
            }
        })
    }

    /// Changes a trigger at all servers.
    pub(super) fn set_agreed(
        &self,
        view: &TenantView,
        name: &str,
        change: &TriggerChange,
    ) -> Result<TriggerStatus, TriggerError> {
        let tenant = view.tenant.id;
        self.agree(tenant, |all| {
            let known = all.get_mut(name).ok_or_else(|| TriggerError::Unknown(name.to_owned()))?;
            let before = definition_of(known)?;
            let spec = change.clone().of(&before).map_err(TriggerError::Invalid)?;
            if spec != before {
                self.start_position(view, &spec)?;
                self.check_call(tenant, &spec)?;
                known.definition = text_of(&spec)?;
            }
            Ok(())
        })?;
        self.show(tenant, name)
    }

    /// Removes a trigger at all servers.
    pub(super) fn remove_agreed(&self, tenant: u32, name: &str) -> Result<(), TriggerError> {
        self.agree(tenant, |all| all.remove(name).map(drop).ok_or_else(|| TriggerError::Unknown(name.to_owned())))
    }

    /// Pauses a trigger at all servers, or resumes it, also where it has paused itself.
    pub(super) fn pause_agreed(&self, tenant: u32, name: &str, paused: bool) -> Result<(), TriggerError> {
        self.agree(tenant, |all| {
            let known = all.get_mut(name).ok_or_else(|| TriggerError::Unknown(name.to_owned()))?;
            known.paused = paused;
            known.resumed += u64::from(!paused);
            Ok(())
        })
    }

    /// Adds a trigger to a tenant's. Each server has all triggers of the cluster, so those of other tenants count, as
    /// they are known here; so do those that are this server's alone.
    fn insert(&self, tenant: u32, all: &mut AgreedTriggers, name: &str, definition: &str) -> Result<(), TriggerError> {
        if all.len() >= TRIGGERS_PER_TENANT {
            let why = format!("the tenant has {TRIGGERS_PER_TENANT} triggers, as many as it may have");
            return Err(TriggerError::TooMany(why));
        }
        let own = self.shared.store.own_triggers();
        let is_replaced = |one: &&(u32, String)| one.0 == tenant && (one.1 == name || all.contains_key(&one.1));
        let own = own.len() - own.iter().filter(is_replaced).count();
        let snapshot = self.shared.directory.snapshot();
        let others: usize =
            snapshot.iter().filter(|view| view.tenant.id != tenant).map(|view| view.triggers.len()).sum();
        if others + all.len() + own >= TRIGGERS {
            return Err(TriggerError::TooMany(format!(
                "the cluster has {TRIGGERS} triggers of all tenants, as many as each server may have: delete some"
            )));
        }
        let (serial, definition) = (random_seed(), definition.to_owned());
        all.insert(name.to_owned(), AgreedTrigger { serial, definition, paused: false, resumed: 0 });
        Ok(())
    }

    /// Makes a change of a tenant's triggers on which all servers agree, and has it hold here.
    fn agree<T>(
        &self,
        tenant: u32,
        change: impl FnMut(&mut AgreedTriggers) -> Result<T, TriggerError>,
    ) -> Result<T, TriggerError> {
        let changed = self.shared.directory.change_triggers(tenant, change);
        let done = changed.map_err(|error| TriggerError::NotAgreed(error.to_string()))??;
        self.shared.take_over(Some(tenant), &mut BTreeSet::new())?;
        self.shared.ask_for_expiry(tenant)?;
        Ok(done)
    }
}

fn text_of(spec: &TriggerDefinition) -> Result<String, TriggerError> {
    serde_json::to_string(spec).map_err(|error| TriggerError::Invalid(error.to_string()))
}

fn definition_of(agreed: &AgreedTrigger) -> Result<TriggerDefinition, TriggerError> {
    serde_json::from_str(&agreed.definition)
        .map_err(|error| TriggerError::Invalid(format!("a trigger of another version: {error}")))
}

impl SharedRunner {
    pub(super) fn is_in_cluster(&self) -> bool {
        self.directory.slots().is_some()
    }

    /// Has the triggers here be those on which the servers agree: of one tenant, or of all. Adds tenants whose triggers
    /// may be others now to `changed`.
    pub(super) fn take_over(&self, tenant: Option<u32>, changed: &mut BTreeSet<u32>) -> Result<(), TriggerError> {
        // Of two that do so, the last one has looked last.
        let _turn = self.taking_over.lock();
        let snapshot = self.directory.snapshot();
        let mut done = Ok(());
        for view in snapshot.iter().filter(|view| tenant.is_none_or(|tenant| view.tenant.id == tenant)) {
            let (is_changed, taken) = self.take_over_of(view);
            changed.extend(is_changed.then_some(view.tenant.id));
            done = done.and(taken);
        }
        if !changed.is_empty() {
            self.send(RunnerMessage::Changed);
        }
        done
    }

    /// Returns whether something may have changed, and whether all is as it was agreed on.
    fn take_over_of(&self, view: &TenantView) -> (bool, Result<(), TriggerError>) {
        let (tenant, mut known): (_, Vec<(String, Option<AgreedTrigger>)>) = (view.tenant.id, Vec::new());
        if let Some(own) = self.store.find(tenant) {
            own.each(|KeptTrigger { trigger, .. }| known.push((trigger.spec.name.clone(), trigger.agreed.clone())));
        }
        let (mut is_changed, mut done) = (false, Ok(()));
        // First: those that are new may take their room.
        for (name, _) in known.iter().filter(|(name, own)| own.is_some() && !view.triggers.contains_key(name)) {
            let removed = self.store.change(tenant, name, |trigger| {
                *trigger = None;
                Ok(())
            });
            (is_changed, done) = (true, done.and(removed));
        }
        for (name, agreed) in view.triggers.iter() {
            if !known.iter().any(|(other, own)| other == name && own.as_ref() == Some(agreed)) {
                let taken = self.store.change(tenant, name, |trigger| self.take_over_one(view, trigger, agreed));
                (is_changed, done) = (true, done.and(taken));
            }
        }
        (is_changed, done)
    }

    /// Has a trigger be as the servers have agreed on it now. What this server knows of it stays, unless that is of
    /// another one that had its name: calls that run go on, if its definition is the same.
    fn take_over_one(
        &self,
        view: &TenantView,
        trigger: &mut Option<ActiveTrigger>,
        agreed: &AgreedTrigger,
    ) -> Result<(), TriggerError> {
        let (spec, now_ms) = (definition_of(agreed)?, clock_ms());
        let is_same = |own: &AgreedTrigger| own.serial == agreed.serial;
        let known = trigger.as_ref().filter(|known| known.agreed.as_ref().is_none_or(is_same));
        let before = known.and_then(|known| known.agreed.clone());
        let made = match known {
            Some(known) if known.spec == spec => None,
            // Of the same table it goes on where it is.
            Some(known) if known.spec.table == spec.table => Some(known.redefined(spec, known.position(), now_ms)),
            known => {
                let log = self.directory.change_log();
                let from = log.map_or((0, 0), |log| (log.durable(), log.id()));
                let dead_letters = known.map(ActiveTrigger::dead_letters).unwrap_or_default();
                let begins = StoredTrigger::begins(&view.tenant, spec, from, now_ms);
                Some(ActiveTrigger::of(StoredTrigger { dead_letters, ..begins }))
            }
        };
        if let Some(made) = made.transpose().map_err(TriggerError::Invalid)? {
            *trigger = Some(made);
        }
        let Some(trigger) = trigger else { return Ok(()) };
        // Also one that was made anew, as it has another table.
        if agreed.paused && trigger.paused.is_empty() {
            trigger.pause(PAUSED.to_owned());
        } else if !agreed.paused && before.is_some_and(|before| before.resumed != agreed.resumed) {
            trigger.resume(now_ms);
        }
        trigger.agreed = Some(agreed.clone());
        Ok(())
    }

    /// The thread that takes over what other servers have changed.
    pub(super) fn take_over_until(&self, end: &Receiver<()>) {
        // Tenants whose tables are to log what expires as their triggers want it now: also no longer.
        let (mut seen, mut pace, mut unasked) = (None, TakeOverPace::default(), BTreeSet::new());
        while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(TRIGGER_AGREED_LOOK) {
            let now = self.directory.snapshot().generation();
            if seen == Some(now) || !pace.is_due(now, Instant::now()) {
                continue;
            }
            let mut taken = self.take_over(None, &mut unasked);
            unasked.retain(|tenant| {
                let asked = self.ask_for_expiry(*tenant);
                let is_asked = asked.is_ok();
                taken = std::mem::replace(&mut taken, Ok(())).and(asked);
                !is_asked
            });
            match taken {
                Ok(()) => (seen, pace) = (Some(now), TakeOverPace::default()),
                Err(error) => {
                    if pace.note_failure(now, &error.to_string(), Instant::now()) {
                        tracing::warn!(%error, "not all triggers of the cluster are taken over yet; it is tried again");
                    }
                }
            }
        }
    }
}

/// How soon triggers are taken over again where that has failed, and whether the server's log says so.
#[derive(Default)]
struct TakeOverPace {
    /// The generation of the directory with which it has failed, the time of the last try, and the pause behind it.
    failed: Option<(u64, Instant, Duration)>,
    /// What the log has said last, and when.
    told: Option<(String, Instant)>,
}

impl TakeOverPace {
    /// Whether it is to be tried. What has changed since the last try may have mended it.
    fn is_due(&self, generation: u64, now: Instant) -> bool {
        self.failed.is_none_or(|(failed, at, pause)| {
            let pause = if failed == generation { pause } else { TRIGGER_AGREED_LOOK };
            now.saturating_duration_since(at) >= pause
        })
    }

    /// Notes that it has failed; returns whether the log is to say so.
    fn note_failure(&mut self, generation: u64, why: &str, now: Instant) -> bool {
        let pause = match self.failed {
            Some((failed, _, pause)) if failed == generation => (pause * 2).min(TRIGGER_AGREED_PAUSE_MAX),
            _ => TRIGGER_AGREED_LOOK * 2,
        };
        self.failed = Some((generation, now, pause));
        let is_new = |(told, at): &(String, Instant)| {
            told.as_str() != why || now.saturating_duration_since(*at) >= TRIGGER_AGREED_LOG
        };
        let tells = self.told.as_ref().is_none_or(is_new);
        if tells {
            self.told = Some((why.to_owned(), now));
        }
        tells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_taken_over_is_tried_more_and_more_seldom_and_told_once_a_minute() {
        let (mut pace, start) = (TakeOverPace::default(), Instant::now());
        let (mut tries, mut told) = (0, 0);
        // The looks of an hour, and nothing changes.
        let looks = (3_600_000 / TRIGGER_AGREED_LOOK.as_millis()) as u32;
        for look in 0..looks {
            let now = start + TRIGGER_AGREED_LOOK * look;
            if pace.is_due(7, now) {
                tries += 1;
                told += u32::from(pace.note_failure(7, "too many", now));
            }
        }
        let most = 3_600 / TRIGGER_AGREED_PAUSE_MAX.as_secs() as u32 + 10;
        assert!((most / 2..=most).contains(&tries), "{tries} tries in an hour");
        assert!((50..=60).contains(&told), "{told} lines in an hour");
        // What is changed may mend it.
        let now = start + TRIGGER_AGREED_LOOK * looks;
        assert!(pace.is_due(8, now + TRIGGER_AGREED_LOOK) && pace.note_failure(8, "another text", now));
        assert!(!pace.is_due(8, now + TRIGGER_AGREED_LOOK) && pace.is_due(8, now + TRIGGER_AGREED_LOOK * 2));
    }
}
