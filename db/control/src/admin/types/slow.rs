//! The JSON bodies about slow requests.

use std::borrow::Cow;

use sandstorm_accounts::{CallPauses, RequestWaits, WaitSum};
use serde::{Deserialize, Serialize};

/// `GET /v1/slow`.
#[derive(Clone, Debug, Serialize)]
pub struct SlowResponse {
    /// Microseconds from arrival to answer from which a request is slow; 0: none is.
    pub threshold_us: u64,
    /// Slow requests that were not kept, because too many came at once.
    pub left_out: u64,
    /// Those that are kept and were asked for, newest first.
    pub requests: Vec<SlowRequestResponse>,
}

/// `PUT /v1/slow`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeSlowRequest {
    /// Microseconds from arrival to answer from which a request is slow; 0: none is.
    pub threshold_us: u64,
}

/// A slow request, or several of one tenant that were answered together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowRequestResponse {
    /// Its number: they grow, over all tenants.
    pub id: u64,
    /// When it was answered, in milliseconds since 1970.
    pub at_ms: u64,
    /// Its tenant.
    pub tenant: String,
    /// The kind of request: `get`, `put`, `range`, `call`, `redis` or `memcached`.
    pub class: Cow<'static, str>,
    /// The operation, or the command of another protocol; of several, the first.
    pub operation: Cow<'static, str>,
    /// The table, if there is one and it is still there.
    pub table: Option<String>,
    /// The beginning of the key, for its tenant alone; over a restart if its table has durability. Bytes that are no
    /// text are replaced.
    pub key: Option<String>,
    /// A digest of the beginning of the key and its length: equal for equal ones until the server restarts.
    pub key_digest: Option<String>,
    /// Bytes of the key.
    pub key_bytes: u64,
    /// Requests that were answered together with it, and as slowly: itself among them.
    pub count: u64,
    /// From arrival to answer.
    pub total_ns: u64,
    /// The part of it in which nothing was done for it.
    pub waiting_ns: u64,
    /// The other part, until the answer had left; of calls, their CPU time.
    pub service_ns: u64,
    /// What it waited for beside its turn; of several, the first.
    #[serde(default)]
    pub waits: RequestWaitsResponse,
    /// The worker that answered it.
    pub worker: u32,
    /// What it did, if it is a call.
    pub call: Option<SlowCallResponse>,
    /// Whose calls had turns on that worker meanwhile, and whose requests were answered, the longest first, its own
    /// among them.
    pub turns: Vec<TurnShareResponse>,
    /// The part of its time, up to its end, for which turns are known.
    pub known_ns: u64,
}

/// What a request waited for beside its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestWaitsResponse {
    /// For records that were on the disk.
    pub disk_ns: u64,
    /// For records that were behind their table, in its backing.
    pub backing_ns: u64,
    /// Once it was done, for the log to be on the disk.
    pub log_ns: u64,
    /// Once it was done, for the log to be on its copies, too.
    pub copies_ns: u64,
    /// Once it was done, for the backing of its table to have its change.
    pub backed_ns: u64,
}

impl From<RequestWaits> for RequestWaitsResponse {
    fn from(waits: RequestWaits) -> RequestWaitsResponse {
        let RequestWaits { disk_ns, backing_ns, log_ns, copies_ns, backed_ns } = waits;
        RequestWaitsResponse { disk_ns, backing_ns, log_ns, copies_ns, backed_ns }
    }
}

/// What a slow call did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowCallResponse {
    /// The extension.
    pub extension: String,
    /// Its version.
    pub version: u64,
    /// Its number in the tenant's log; 0: it has written no line.
    pub log_call: u64,
    /// How it ended: `ok`, `failed`, or the cause of its kill.
    pub outcome: Cow<'static, str>,
    /// CPU time of its turns.
    pub cpu_ns: u64,
    /// Its turns.
    pub turns: u32,
    /// Those of them that ended because it computed past its slice.
    pub switches: u32,
    /// The others but the last: it waited for something, or yielded. `pauses` has them by why.
    pub waits: u32,
    /// How often it waited for records that were not in memory: they were on the disk, or behind their table.
    #[serde(default)]
    pub cold_waits: u32,
    /// For how long.
    #[serde(default)]
    pub cold_ns: u64,
    /// Records that it read.
    pub reads: u64,
    /// Bytes of their values.
    pub read_bytes: u64,
    /// Runs that were begun anew, because its transaction met the writes of others.
    pub retries: u64,
    /// Calls of other extensions that it has begun.
    #[serde(default)]
    pub nested_calls: u32,
    /// Their CPU time, which is part of its own.
    #[serde(default)]
    pub nested_cpu_ns: u64,
    /// From its arrival until its first turn began.
    #[serde(default)]
    pub queue_ns: u64,
    /// From its arrival until its first turn was over.
    pub first_turn_ns: u64,
    /// What it waited for between its turns, and within them.
    #[serde(default)]
    pub pauses: CallPausesResponse,
    /// The first bytes of its arguments, as ASCII with escapes, if its manifest asks for that; for its tenant and the
    /// operator.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub arguments: String,
}

/// How often something was waited for, and for how long together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitSumResponse {
    /// How often.
    pub count: u32,
    /// For how long.
    pub ns: u64,
}

impl From<WaitSum> for WaitSumResponse {
    fn from(WaitSum { count, ns }: WaitSum) -> WaitSumResponse {
        WaitSumResponse { count, ns }
    }
}

/// What a call waited for. The first six are from the end of a turn to the beginning of the next one, by why that turn
/// ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallPausesResponse {
    /// It had computed past its slice.
    pub switched: WaitSumResponse,
    /// Records that it reads came from memory, or others had their turn between two parts of a range.
    pub reads: WaitSumResponse,
    /// It yielded by itself.
    pub yields: WaitSumResponse,
    /// Records were not in memory; what of it the disk and the backing took is in `waits` of the request.
    pub cold: WaitSumResponse,
    /// A call of another extension was to begin, or had ended.
    pub calls: WaitSumResponse,
    /// It was to begin anew: others wrote what its transaction had read.
    pub retries: WaitSumResponse,
    /// Within its turns, for locks that others had.
    pub locks: WaitSumResponse,
    /// Within its turns, for commits of others to be complete.
    pub commits: WaitSumResponse,
    /// From the beginning of its first turn until it began anew for the last time, turns and waits together.
    pub vain_ns: u64,
}

impl From<CallPauses> for CallPausesResponse {
    fn from(pauses: CallPauses) -> CallPausesResponse {
        let CallPauses { switched, reads, yields, cold, calls, retries, locks, commits, vain_ns } = pauses;
        CallPausesResponse {
            switched: switched.into(),
            reads: reads.into(),
            yields: yields.into(),
            cold: cold.into(),
            calls: calls.into(),
            retries: retries.into(),
            locks: locks.into(),
            commits: commits.into(),
            vain_ns,
        }
    }
}

/// What a worker did for a tenant: the turns of its calls, and its requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnShareResponse {
    /// The tenant; `null`: others, which are not counted apart, are not there any more, or are not shown to the caller.
    pub tenant: Option<String>,
    /// Turns of its calls.
    pub turns: u64,
    /// Their CPU time.
    pub cpu_ns: u64,
    /// Requests other than calls that were answered. A message of many operations is one.
    pub requests: u64,
}
