//! Triggers on which the servers of a cluster agree. Here a trigger's definition is only a text; the control plane
//! interprets it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A trigger of a tenant, as all servers of a cluster have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgreedTrigger {
    /// A random number, which tells it from another one that had its name.
    pub serial: u64,
    /// Its definition.
    pub definition: String,
    /// Whether it makes no calls.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Times that it was resumed: each server takes up each of them.
    #[serde(default)]
    pub resumed: u64,
}

/// A tenant's triggers by name.
pub type AgreedTriggers = BTreeMap<String, AgreedTrigger>;
