//! Triggers: calls by the clock, or for changes of a table.

use serde::Serialize;

use super::{Control, ControlError, DeadLetterReport, TriggerPatch, TriggerReport, TriggerSpec, path_segment};

impl Control {
    /// Lists a tenant's triggers.
    pub fn triggers(&self, tenant: &str) -> Result<Vec<TriggerReport>, ControlError> {
        self.get(&format!("/v1/tenants/{}/triggers", path_segment(tenant)))
    }

    /// Makes a trigger. The first change of a table that it is called for is the next one.
    pub fn create_trigger(&self, tenant: &str, spec: &TriggerSpec) -> Result<TriggerReport, ControlError> {
        self.post(&format!("/v1/tenants/{}/triggers", path_segment(tenant)), spec)
    }

    /// One of a tenant's triggers.
    pub fn trigger(&self, tenant: &str, name: &str) -> Result<TriggerReport, ControlError> {
        self.get(&trigger_path(tenant, name, ""))
    }

    /// Changes a trigger in its place: its position and its dead letters stay.
    pub fn change_trigger(
        &self,
        tenant: &str,
        name: &str,
        change: &TriggerPatch,
    ) -> Result<TriggerReport, ControlError> {
        self.send(self.agent.patch(self.url(&trigger_path(tenant, name, ""))), change)
    }

    /// Removes a trigger with its dead letters.
    pub fn delete_trigger(&self, tenant: &str, name: &str) -> Result<(), ControlError> {
        self.delete(&trigger_path(tenant, name, ""))
    }

    /// Has a trigger make no calls until it is resumed.
    pub fn pause_trigger(&self, tenant: &str, name: &str) -> Result<(), ControlError> {
        self.post_nothing(&trigger_path(tenant, name, "/pause"))
    }

    /// Has a trigger make calls again.
    pub fn resume_trigger(&self, tenant: &str, name: &str) -> Result<(), ControlError> {
        self.post_nothing(&trigger_path(tenant, name, "/resume"))
    }

    /// Makes the calls of a trigger's dead letters again, and returns their number; or those for all changes behind a
    /// position of the table's feed, or from its `end` on.
    pub fn replay_trigger(&self, tenant: &str, name: &str, from: Option<&str>) -> Result<u64, ControlError> {
        #[derive(Serialize)]
        struct ReplayRequest<'f> {
            #[serde(skip_serializing_if = "Option::is_none")]
            from: Option<&'f str>,
        }
        #[derive(serde::Deserialize)]
        struct ReplayAnswer {
            letters: u64,
        }
        let answer: ReplayAnswer = self.post(&trigger_path(tenant, name, "/replay"), &ReplayRequest { from })?;
        Ok(answer.letters)
    }

    /// Lists the calls of a trigger whose tries are over.
    pub fn dead_letters(&self, tenant: &str, name: &str) -> Result<Vec<DeadLetterReport>, ControlError> {
        self.get(&trigger_path(tenant, name, "/dead-letters"))
    }

    /// Removes the dead letters of a trigger.
    pub fn discard_dead_letters(&self, tenant: &str, name: &str) -> Result<(), ControlError> {
        self.delete(&trigger_path(tenant, name, "/dead-letters"))
    }
}

/// The path of a trigger, and what follows it.
fn trigger_path(tenant: &str, name: &str, behind: &str) -> String {
    format!("/v1/tenants/{}/triggers/{}{behind}", path_segment(tenant), path_segment(name))
}
