//! The answers of triggers to moves of slots: see `sandstorm_cluster::change_calls`.

use super::{ChangeCaller, KeptTrigger, SharedRunner, clock_ms};

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
}
