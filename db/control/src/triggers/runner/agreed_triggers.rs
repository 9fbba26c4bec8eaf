//! Triggers of a server of a cluster. All servers agree on what they are, in the directory; each has its own position,
//! dead letters and counts, and makes the calls for the changes in its own log. Calls of a schedule are made by the
//! server that owns the slot of the trigger's name.
//!
//! A trigger that an earlier version has made is of its own server, and stays so until one of its name is agreed on.

use std::sync::mpsc::{Receiver, RecvTimeoutError};

use super::{
    ActiveTrigger, DeclaredTrigger, KeptTrigger, PAUSED, RunnerMessage, SharedRunner, StoredTrigger, TriggerChange,
    TriggerDefinition, TriggerError, TriggerRunner, TriggerStatus, clock_ms,
};
use crate::limits::{TRIGGER_AGREED_LOOK, TRIGGERS_PER_TENANT};
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
            None => insert(all, &spec.name, &definition),
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
            None => insert(all, name, &definition).map(|()| DeclaredTrigger::Created),
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

    /// Makes a change of a tenant's triggers on which all servers agree, and has it hold here.
    fn agree<T>(
        &self,
        tenant: u32,
        change: impl FnMut(&mut AgreedTriggers) -> Result<T, TriggerError>,
    ) -> Result<T, TriggerError> {
        let changed = self.shared.directory.change_triggers(tenant, change);
        let done = changed.map_err(|error| TriggerError::NotAgreed(error.to_string()))??;
        self.shared.take_over(Some(tenant))?;
        self.shared.ask_for_expiry(tenant)?;
        Ok(done)
    }
}

fn insert(all: &mut AgreedTriggers, name: &str, definition: &str) -> Result<(), TriggerError> {
    if all.len() >= TRIGGERS_PER_TENANT {
        let why = format!("the tenant has {TRIGGERS_PER_TENANT} triggers, as many as it may have");
        return Err(TriggerError::TooMany(why));
    }
    let (serial, definition) = (random_seed(), definition.to_owned());
    all.insert(name.to_owned(), AgreedTrigger { serial, definition, paused: false, resumed: 0 });
    Ok(())
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

    /// Has the triggers here be those on which the servers agree: of one tenant, or of all.
    pub(super) fn take_over(&self, tenant: Option<u32>) -> Result<(), TriggerError> {
        // Of two that do so, the last one has looked last.
        let _turn = self.taking_over.lock();
        let snapshot = self.directory.snapshot();
        let mut done = Ok(());
        for view in snapshot.iter().filter(|view| tenant.is_none_or(|tenant| view.tenant.id == tenant)) {
            done = done.and(self.take_over_of(view));
        }
        done
    }

    fn take_over_of(&self, view: &TenantView) -> Result<(), TriggerError> {
        let (tenant, mut known): (_, Vec<(String, Option<AgreedTrigger>)>) = (view.tenant.id, Vec::new());
        if let Some(own) = self.store.find(tenant) {
            own.each(|KeptTrigger { trigger, .. }| known.push((trigger.spec.name.clone(), trigger.agreed.clone())));
        }
        let mut done = Ok(());
        for (name, agreed) in view.triggers.iter() {
            if !known.iter().any(|(other, own)| other == name && own.as_ref() == Some(agreed)) {
                let taken = self.store.change(tenant, name, |trigger| self.take_over_one(view, trigger, agreed));
                done = done.and(taken);
            }
        }
        for (name, _) in known.iter().filter(|(name, own)| own.is_some() && !view.triggers.contains_key(name)) {
            done = done.and(self.store.change(tenant, name, |trigger| {
                *trigger = None;
                Ok(())
            }));
        }
        if !known.is_empty() || !view.triggers.is_empty() {
            self.send(RunnerMessage::Changed);
        }
        done
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
        let mut seen = None;
        while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(TRIGGER_AGREED_LOOK) {
            let now = self.directory.snapshot().generation();
            if seen == Some(now) {
                continue;
            }
            match self.take_over(None) {
                Ok(()) => seen = Some(now),
                Err(error) => tracing::warn!(%error, "not all triggers of the cluster are taken over yet"),
            }
        }
    }
}
