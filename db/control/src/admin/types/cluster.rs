//! A cluster as the control API shows it.

use sandstorm_cluster::slot_plans::PlannedMove;
use serde::{Deserialize, Serialize};

/// The servers of a cluster, and the owner of each slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClusterResponse {
    /// The id of the server that answers.
    pub server: String,
    /// The epoch of the map of slots; 0: the cluster is not founded yet.
    pub epoch: u64,
    /// The servers, in the order of their ids.
    pub servers: Vec<ClusterServerResponse>,
    /// Ranges of slots without an owner: first and last.
    pub unowned: Vec<[u16; 2]>,
    /// Moves of slots that are under way.
    pub moves: Vec<ClusterMoveResponse>,
    /// What there is of copies of logs.
    pub copies: CopiesResponse,
    /// Why the cluster's state cannot be read, or is not understood.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Since when, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble_since_ms: Option<u64>,
}

/// A server of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClusterServerResponse {
    /// Its id.
    pub id: String,
    /// Whether it is the one that answers.
    pub is_this: bool,
    /// Whether it has told of itself in the last ten seconds.
    pub lives: bool,
    /// Its first data port.
    pub data_address: String,
    /// Its port for Redis clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redis_address: Option<String>,
    /// Its port for memcached clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memcached_address: Option<String>,
    /// Its control port.
    pub control_url: String,
    /// Whether it gives all its slots away, and gets none.
    pub draining: bool,
    /// Whether it has the same tenants, tables and names of extensions as the one that answers.
    pub has_same_tenants: bool,
    /// Ranges of slots that it owns: first and last.
    pub slots: Vec<[u16; 2]>,
}

/// A move of slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClusterMoveResponse {
    /// First and last slot.
    pub slots: [u16; 2],
    /// The id of the server that gives them away.
    pub from: String,
    /// The id of the server that takes them.
    pub to: String,
    /// Whether that server owns them; the other one removes its records.
    pub handed_over: bool,
    /// MiB that are copied in a second, at most; 0: as many as can be.
    pub mib_per_s: u64,
    /// What is done now; known to the two servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Records that were copied so far; known to the server that takes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
    /// Their bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// `POST /v1/cluster/moves`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeginMovesRequest {
    /// Ranges of slots: first and last.
    pub slots: Vec<[u16; 2]>,
    /// The id of the server that is to have them.
    pub to: String,
    /// MiB that are copied in a second, at most; 0: as many as can be.
    #[serde(default)]
    pub mib_per_s: u64,
}

/// `POST /v1/cluster/moves/cancel`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelMovesRequest {
    /// Ranges of slots: first and last.
    pub slots: Vec<[u16; 2]>,
}

/// `POST /v1/cluster/drain`, `/add` and `/remove`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeServerRequest {
    /// The server's id.
    pub server: String,
    /// MiB that are copied in a second, at most; 0: as many as can be. Not for `remove`.
    #[serde(default)]
    pub mib_per_s: u64,
    /// Whether its slots go to the others without their records. For `remove` only.
    #[serde(default)]
    pub give_up_records: bool,
    /// Whether only the plan is wanted.
    #[serde(default)]
    pub plan: bool,
}

/// The answer to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerChangeResponse {
    /// The number of moves that were begun, or are planned.
    pub moves: usize,
    /// Slots that the server owns.
    pub slots: usize,
    /// Moves to it or from it that are under way.
    pub moving: usize,
    /// What would be moved, if only the plan is wanted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub planned: Vec<PlannedMoveResponse>,
}

/// `POST /v1/cluster/balance`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BalanceRequest {
    /// Whether only the plan is wanted.
    #[serde(default)]
    pub plan: bool,
    /// MiB that each move copies in a second, at most; 0: as many as can be.
    #[serde(default)]
    pub mib_per_s: u64,
    /// How far above the mean a server may be, in percent of it.
    #[serde(default)]
    pub within_percent: Option<f64>,
    /// The moves of a plan that was read before: they are begun as they are.
    #[serde(default)]
    pub moves: Option<Vec<PlannedMoveResponse>>,
}

/// The answer to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BalanceResponse {
    /// Whether the moves were begun.
    pub begun: bool,
    /// The moves.
    pub moves: Vec<PlannedMoveResponse>,
    /// Bytes of memory of the records that they copy, about.
    pub bytes: u64,
    /// The servers that live; none where the plan was given.
    pub servers: Vec<ServerBalanceResponse>,
    /// Why it does not do more.
    pub remarks: Vec<String>,
}

/// What a server has to do, before a plan and after it. Moves that were under way count as made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerBalanceResponse {
    /// Its id.
    pub server: String,
    /// The part of its workers' time that its slots take.
    pub cpu: f64,
    /// The same after the plan.
    pub cpu_after: f64,
    /// The part of its machine's memory that its records take.
    pub memory: f64,
    /// The same after the plan.
    pub memory_after: f64,
    /// Bytes of memory of its records.
    pub memory_bytes: u64,
    /// Of the slots that it will have, the one that takes most of its workers' time.
    pub hottest_slot: Option<u16>,
    /// The part of their time that this one takes.
    pub hottest_slot_cpu: Option<f64>,
}

/// Slots that one server would give to another.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedMoveResponse {
    /// First and last slot.
    pub slots: [u16; 2],
    /// The id of the server that gives them away.
    pub from: String,
    /// The id of the server that takes them.
    pub to: String,
}

impl From<PlannedMove> for PlannedMoveResponse {
    fn from(PlannedMove { span, source, target }: PlannedMove) -> PlannedMoveResponse {
        PlannedMoveResponse { slots: [span.first, span.last], from: source, to: target }
    }
}

/// `POST /v1/cluster/split`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitRequest {
    /// The id of the server that gives about half of what it has to do.
    pub from: String,
    /// The id of the server that takes it.
    pub to: String,
    /// The tenant whose tables are looked at; left out: those of all.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Whether only the plan is wanted.
    #[serde(default)]
    pub plan: bool,
    /// MiB that each move copies in a second, at most; 0: as many as can be.
    #[serde(default)]
    pub mib_per_s: u64,
}

/// The answer to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SplitResponse {
    /// Whether the moves were begun.
    pub begun: bool,
    /// The moves.
    pub moves: Vec<PlannedMoveResponse>,
    /// By what slots were divided: `accesses`, `bytes` or `slots`.
    pub measure: &'static str,
    /// The part of that which goes: 0 to 1.
    pub part: f64,
    /// Slots that go.
    pub slots: usize,
    /// Bytes of memory of the records that the moves copy, about.
    pub bytes: u64,
    /// Why it is not half.
    pub remarks: Vec<String>,
}

/// The answer to requests about moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MovesResponse {
    /// The number of moves that were begun, one for each server that has some of the slots; or cancelled.
    pub moves: usize,
}

/// What there is of copies of logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CopiesResponse {
    /// Copies of this server's log that are wanted on other servers; 0: no table needs them.
    pub wanted: usize,
    /// Whether writes that wait for copies are refused, since not all of them confirm.
    pub stalled: bool,
    /// The position of this server's log that all needed copies have.
    pub position: u64,
    /// The copies of this server's log.
    pub copies: Vec<CopyResponse>,
    /// The generations of all servers.
    pub generations: Vec<GenerationResponse>,
    /// The copies of other servers' logs that this server has.
    pub kept: Vec<StoredCopyResponse>,
    /// The servers whose logs have copies here, and of which nothing is heard; and the one whose successor is gone.
    pub suspected: Vec<SuspectedServerResponse>,
}

/// A server of which nothing is heard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SuspectedServerResponse {
    /// Its id.
    pub server: String,
    /// Milliseconds without a word of it, as this server has counted them.
    pub silent_ms: u64,
    /// Whether it is gone: nothing listens where it was, or it leaves questions unanswered.
    pub gone: bool,
    /// Why this server does not take its place by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
}

/// A copy of this server's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CopyResponse {
    /// The id of the server that has it.
    pub server: String,
    /// Whether acknowledgements wait for it; else it is being filled.
    pub needed: bool,
    /// Whether it has confirmed something a moment ago.
    pub confirms: bool,
    /// Bytes of the log that it has not confirmed.
    pub behind_bytes: u64,
    /// The position up to which it has the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// The copies of a server's log, as all servers agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GenerationResponse {
    /// The id of the server.
    pub owner: String,
    /// The number of the generation.
    pub number: u64,
    /// The ids of the servers that have copies.
    pub servers: Vec<String>,
    /// The server that takes its place now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub successor: Option<String>,
}

/// The copy of another server's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredCopyResponse {
    /// The id of the server whose log it is.
    pub owner: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// Whether it is sealed: it takes nothing any more.
    pub sealed: bool,
    /// Seconds since all of it was read again and was sound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checked_s_ago: Option<u64>,
    /// What of it is damaged: it counts for nothing, and its owner makes another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

/// `POST /v1/cluster/fail-over`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailOverRequest {
    /// The id of the server whose place another one takes.
    pub server: String,
    /// The id of that other one, which has a copy of its log; left out: the one with the fewest slots.
    #[serde(default)]
    pub to: Option<String>,
    /// Whether the last writes to tables that do not wait for copies may be lost.
    #[serde(default)]
    pub give_up_writes: bool,
}

/// The answer to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailOverResponse {
    /// True: the servers agree on it, and it goes on by itself.
    pub begun: bool,
}
