//! A cluster, as a server of it tells.

use serde::{Deserialize, Serialize};

/// The servers of a cluster, and the owner of each slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The id of the server that answers.
    pub server: String,
    /// The epoch of the map of slots; 0: the cluster is not founded yet.
    pub epoch: u64,
    /// The servers, in the order of their ids.
    pub servers: Vec<ClusterMemberStatus>,
    /// Ranges of slots without an owner: first and last.
    pub unowned: Vec<[u16; 2]>,
    /// Why the cluster's state cannot be read, or is not understood.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Since when, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble_since_ms: Option<u64>,
}

/// A server of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMemberStatus {
    /// Its id.
    pub id: String,
    /// Whether it is the one that answers.
    pub is_this: bool,
    /// Whether it has told of itself in the last ten seconds.
    pub lives: bool,
    /// Its first data port.
    pub data_address: String,
    /// Its port for Redis clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redis_address: Option<String>,
    /// Its port for memcached clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memcached_address: Option<String>,
    /// Its control port.
    pub control_url: String,
    /// Whether it has the same tenants, tables and names of extensions as the one that answers.
    pub has_same_tenants: bool,
    /// Ranges of slots that it owns: first and last.
    pub slots: Vec<[u16; 2]>,
}
