//! What triggers do where slots move, or a server takes another one's place: see `sandstorm_cluster::change_calls`.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{ChangeCaller, KeptTrigger, SharedRunner, clock_ms, pause_event};

/// Longest wait for the log once this server's place is lost.
const LOST_LOG_WAIT: Duration = Duration::from_secs(5);

impl ChangeCaller for SharedRunner {
    fn behind(&self, position: u64) -> Option<String> {
        let (mut first, now_ms) = (None, clock_ms());
        for of_tenant in self.store.tenants() {
            of_tenant.each(|KeptTrigger { trigger, .. }| {
                if first.is_none() && trigger.is_behind(position, now_ms) {
                    first = Some(format!("trigger {:?} of tenant {:?}", trigger.spec.name, trigger.tenant_name));
                }
            });
        }
        first
    }

    fn give_up(&self, position: u64) {
        let now_ms = clock_ms();
        self.store.tenants().iter().for_each(|of_tenant| of_tenant.give_up(position, now_ms));
    }

    fn take_over(&self) -> Result<(), String> {
        SharedRunner::take_over(self, None, &mut BTreeSet::new()).map_err(|error| error.to_string())
    }

    fn lose(&self, serial: u64, why: &str) {
        let mut found = None;
        for of_tenant in self.store.tenants() {
            of_tenant.each(|KeptTrigger { trigger, .. }| {
                if trigger.agreed.as_ref().is_some_and(|agreed| agreed.serial == serial) {
                    found = Some((of_tenant.tenant, trigger.spec.name.clone()));
                }
            });
        }
        let Some((tenant, name)) = found else { return };
        let text = format!(
            "trigger {name:?} has missed changes: {why}. What they were is in the table alone; `sandstorm trigger resume \
             {name}` goes on with what is there"
        );
        let mut event = None;
        let paused = self.store.change(tenant, &name, |trigger| {
            if let Some(trigger) = trigger {
                trigger.pause(text);
                event = Some(pause_event(trigger));
            }
            Ok(())
        });
        if let Err(error) = paused {
            tracing::error!(%error, "a restart does not know that trigger {name:?} has missed changes");
        }
        event.into_iter().for_each(&self.events);
    }
}

impl SharedRunner {
    /// Another server has taken this one's place: it makes the calls for all that this server's log has of tables, and
    /// this one none. Routes that are looked up before this are of a time when it had not.
    pub(super) fn leave_lost_calls(&self) {
        let lost = self.directory.slots().map_or(0, |slots| slots.lost_places());
        if self.lost_places.swap(lost, Ordering::SeqCst) == lost {
            return;
        }
        let Some(log) = self.directory.change_log() else { return };
        // What is not on the disk by then is on no copy, either.
        log.wait(log.end(), LOST_LOG_WAIT);
        let end = log.durable();
        for of_tenant in self.store.tenants() {
            of_tenant.each(|kept| {
                if kept.trigger.agreed.is_some() && kept.trigger.table().is_some() {
                    kept.go_on_from(end, &log);
                }
            });
        }
        self.store.write_handled(true);
        tracing::warn!(
            "another server has taken this one's place: it makes the calls of triggers for what was changed"
        );
    }
}
