//! A cluster, as a server of it tells.

use serde::{Deserialize, Serialize};

use super::{Control, ControlError};

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
    /// Moves of slots that are under way; servers of earlier versions leave it out where there are none.
    #[serde(default)]
    pub moves: Vec<SlotMoveStatus>,
    /// What there is of copies of logs.
    #[serde(default)]
    pub copies: CopiesReport,
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
    /// Whether it gives all its slots away, and gets none.
    #[serde(default)]
    pub draining: bool,
    /// Whether it has the same tenants, tables and names of extensions as the one that answers.
    pub has_same_tenants: bool,
    /// Ranges of slots that it owns: first and last.
    pub slots: Vec<[u16; 2]>,
}

/// A move of slots from one server to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotMoveStatus {
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Records that were copied so far; known to the server that takes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
    /// Their bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// Slots that are to be moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlotMoveSpec {
    /// Ranges of slots: first and last.
    pub slots: Vec<[u16; 2]>,
    /// The id of the server that is to have them.
    pub to: String,
    /// MiB that are copied in a second, at most; 0: as many as can be.
    pub mib_per_s: u64,
}

#[derive(Serialize)]
struct CancelledSlots<'s> {
    slots: &'s [[u16; 2]],
}

/// Moves that were begun or cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotMoveCount {
    /// Their number: one for each server that had some of the slots.
    pub moves: usize,
}

/// A server of the cluster whose part in it is to change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ServerChangeSpec {
    /// The server's id.
    pub server: String,
    /// MiB that are copied in a second, at most; 0: as many as can be.
    pub mib_per_s: u64,
    /// Whether its slots go to the others without their records: for [`Control::remove_server`] only.
    pub give_up_records: bool,
    /// Whether only the plan is wanted: nothing is changed.
    pub plan: bool,
}

/// What such a change has begun, or would move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerChangeReport {
    /// The number of moves.
    pub moves: usize,
    /// Slots that the server owns.
    #[serde(default)]
    pub slots: usize,
    /// Moves to it or from it that are under way.
    #[serde(default)]
    pub moving: usize,
    /// What would be moved, if only the plan was wanted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub planned: Vec<PlannedSlotMove>,
}

/// Slots that one server would give to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedSlotMove {
    /// First and last slot.
    pub slots: [u16; 2],
    /// The id of the server that gives them away.
    pub from: String,
    /// The id of the server that takes them.
    pub to: String,
}

/// What is to be levelled, for [`Control::balance`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BalanceSpec {
    /// Whether only the plan is wanted: nothing is changed.
    pub plan: bool,
    /// MiB that each move copies in a second, at most; 0: as many as can be.
    pub mib_per_s: u64,
    /// How far above the mean a server may be, in percent of it; none: as far as the server has by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within_percent: Option<f64>,
    /// The moves of a plan that was read before: they are begun as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moves: Option<Vec<PlannedSlotMove>>,
}

/// What would level the servers, or does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BalanceReport {
    /// Whether the moves were begun.
    pub begun: bool,
    /// The moves.
    pub moves: Vec<PlannedSlotMove>,
    /// Bytes of memory of the records that they copy, about.
    pub bytes: u64,
    /// The servers that live; none where the plan was given.
    pub servers: Vec<ServerBalanceReport>,
    /// Why it does not do more, in sentences.
    pub remarks: Vec<String>,
}

/// What a server has to do, before a plan and after it. Moves that were under way count as made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerBalanceReport {
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

/// A server that is to be split, for [`Control::split`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SplitSpec {
    /// The id of the server that gives about half of what it has to do.
    pub from: String,
    /// The id of the server that takes it.
    pub to: String,
    /// The tenant whose tables are looked at; none: those of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Whether only the plan is wanted: nothing is changed.
    pub plan: bool,
    /// MiB that each move copies in a second, at most; 0: as many as can be.
    pub mib_per_s: u64,
}

/// What would split a server, or does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SplitReport {
    /// Whether the moves were begun.
    pub begun: bool,
    /// The moves.
    pub moves: Vec<PlannedSlotMove>,
    /// By what slots were divided: `accesses`, `bytes` or `slots`.
    pub measure: String,
    /// The part of that which goes: 0 to 1.
    pub part: f64,
    /// Slots that go.
    pub slots: usize,
    /// Bytes of memory of the records that the moves copy, about.
    pub bytes: u64,
    /// Why it is not half, in sentences.
    pub remarks: Vec<String>,
}

/// A server whose place another one is to take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FailOverSpec {
    /// The server's id.
    pub server: String,
    /// The id of that other one; none: the one with the fewest slots among those that have a copy of its log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Whether the last writes to tables that do not wait for copies may be lost.
    pub give_up_writes: bool,
}

/// The answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailOverReport {
    /// True: the servers agree on it, and it goes on by itself.
    pub begun: bool,
}

/// What there is of copies of logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiesReport {
    /// Copies of this server's log that are wanted on other servers; 0: no table needs them.
    pub wanted: usize,
    /// Whether writes that wait for copies are refused, since not all of them confirm.
    pub stalled: bool,
    /// The position of this server's log that all needed copies have.
    pub position: u64,
    /// The copies of this server's log.
    pub copies: Vec<CopyReport>,
    /// The generations of all servers.
    pub generations: Vec<GenerationReport>,
    /// The copies of other servers' logs that this server has.
    pub kept: Vec<StoredCopyReport>,
    /// The servers whose logs have copies here, and of which nothing is heard; and the one whose successor is gone.
    #[serde(default)]
    pub suspected: Vec<SuspectedServerReport>,
}

/// A server of which nothing is heard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspectedServerReport {
    /// Its id.
    pub server: String,
    /// Milliseconds without a word of it, as the server that answers has counted them.
    pub silent_ms: u64,
    /// Whether it is gone: nothing listens where it was, or it leaves questions unanswered.
    pub gone: bool,
    /// Why the server that answers does not take its place by itself.
    #[serde(default, alias = "hurdle", skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
}

/// A copy of this server's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyReport {
    /// The id of the server that has it.
    pub server: String,
    /// Whether acknowledgements wait for it; else it is being filled.
    pub needed: bool,
    /// Whether it has confirmed something a moment ago.
    pub confirms: bool,
    /// Bytes of the log that it has not confirmed.
    pub behind_bytes: u64,
    /// The position up to which it has the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// The copies of a server's log, as all servers agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerationReport {
    /// The id of the server.
    pub owner: String,
    /// The number of the generation.
    pub number: u64,
    /// The ids of the servers that have copies.
    pub servers: Vec<String>,
    /// The server that takes its place now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successor: Option<String>,
}

/// The copy of another server's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredCopyReport {
    /// The id of the server whose log it is.
    pub owner: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// Whether it is sealed: it takes nothing any more.
    pub sealed: bool,
    /// Seconds since all of it was read again and was sound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_s_ago: Option<u64>,
    /// What of it is damaged: it counts for nothing, and its owner makes another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

impl Control {
    /// Has another server take the place of one, with what it has of that one's log. It goes on by itself;
    /// [`Control::cluster`] shows how far it is.
    pub fn fail_over(&self, wanted: &FailOverSpec) -> Result<FailOverReport, ControlError> {
        self.post("/v1/cluster/fail-over", wanted)
    }

    /// Has a server give all its slots to the others: it is to be stopped. It goes on by itself.
    pub fn drain_server(&self, change: &ServerChangeSpec) -> Result<ServerChangeReport, ControlError> {
        self.post("/v1/cluster/drain", change)
    }

    /// Has a server take its share of the slots; ends a drain.
    pub fn add_server(&self, change: &ServerChangeSpec) -> Result<ServerChangeReport, ControlError> {
        self.post("/v1/cluster/add", change)
    }

    /// Plans moves of slots that level the servers' loads, and begins them. It takes some seconds, in which the servers
    /// look at what they do.
    pub fn balance(&self, wanted: &BalanceSpec) -> Result<BalanceReport, ControlError> {
        self.post("/v1/cluster/balance", wanted)
    }

    /// Moves about half of what a server has to do to another one. It takes some seconds, in which the server looks at
    /// what it does.
    pub fn split(&self, wanted: &SplitSpec) -> Result<SplitReport, ControlError> {
        self.post("/v1/cluster/split", wanted)
    }

    /// Removes a server that was stopped from the cluster.
    pub fn remove_server(&self, change: &ServerChangeSpec) -> Result<ServerChangeReport, ControlError> {
        self.post("/v1/cluster/remove", change)
    }

    /// Begins to move slots to a server, which goes on by itself; [`Control::cluster`] shows how far it is.
    pub fn move_slots(&self, wanted: &SlotMoveSpec) -> Result<SlotMoveCount, ControlError> {
        self.post("/v1/cluster/moves", wanted)
    }

    /// Cancels moves of slots that are not handed over yet.
    pub fn cancel_moves(&self, slots: &[[u16; 2]]) -> Result<SlotMoveCount, ControlError> {
        self.post("/v1/cluster/moves/cancel", &CancelledSlots { slots })
    }
}
