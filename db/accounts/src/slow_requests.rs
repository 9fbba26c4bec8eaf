//! The slow requests of a tenant, over all protocols, with what is needed to explain them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use sandstorm_metrics::histogram::RequestClass;

use crate::call_pauses::CallPauses;
use crate::limits::{SLOW_INTERVAL_NS, SLOW_KEY_BYTES, SLOW_REQUESTS};

/// What a request is about: its operation, its table, the beginning of its key. Never a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestSubject {
    /// The operation, or the command of another protocol.
    pub operation: &'static str,
    /// The table's id; 0: none.
    pub table: u64,
    key_len: u32,
    key: [u8; SLOW_KEY_BYTES],
}

impl RequestSubject {
    /// A request of which nothing but the operation is known.
    pub const fn of(operation: &'static str) -> RequestSubject {
        RequestSubject { operation, table: 0, key_len: 0, key: [0; SLOW_KEY_BYTES] }
    }

    /// A request about a key of a table.
    #[inline]
    pub fn new(operation: &'static str, table: u64, key: &[u8]) -> RequestSubject {
        let mut subject = RequestSubject { table, key_len: key.len() as u32, ..RequestSubject::of(operation) };
        match key.first_chunk() {
            Some(first) => subject.key = *first,
            None => subject.key[..key.len()].copy_from_slice(key),
        }
        subject
    }

    /// The beginning of the key.
    pub fn key_prefix(&self) -> &[u8] {
        &self.key[..(self.key_len as usize).min(SLOW_KEY_BYTES)]
    }

    /// Bytes of the whole key; 0: there is none.
    pub fn key_len(&self) -> usize {
        self.key_len as usize
    }
}

/// What a worker did for a tenant while a request waited: the turns of its invocations, and its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnShare {
    /// The tenant's id; 0: those of more tenants than are counted apart.
    pub tenant: u32,
    /// Polls.
    pub turns: u32,
    /// CPU time of these.
    pub cpu_ns: u64,
    /// Requests other than calls that were answered. A message of many operations is one, as in the latencies.
    pub requests: u32,
}

/// What a request waited for beside its turn, nanoseconds each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestWaits {
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

impl RequestWaits {
    /// All of them together.
    pub fn sum_ns(&self) -> u64 {
        self.disk_ns + self.backing_ns + self.log_ns + self.copies_ns + self.backed_ns
    }
}

/// What a slow call did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlowCall {
    /// The extension.
    pub extension: String,
    /// Its version.
    pub version: u64,
    /// Its number in the tenant's log; 0: it has written no line.
    pub log_call: u64,
    /// How it ended: `ok`, `failed`, or the cause of its kill.
    pub outcome: &'static str,
    /// CPU time of its polls.
    pub cpu_ns: u64,
    /// Its polls.
    pub polls: u32,
    /// Those of them that ended by a switch, because it computed past its slice. Why the others ended is in `pauses`.
    pub switches: u32,
    /// How often it waited for records that were not in memory.
    pub cold_waits: u32,
    /// For how long.
    pub cold_ns: u64,
    /// Records that it read.
    pub reads: u64,
    /// Bytes of their values.
    pub read_bytes: u64,
    /// Runs that were begun anew, because its transaction met the writes of others.
    pub retries: u64,
    /// Calls of other extensions that it has begun.
    pub nested_calls: u32,
    /// Their CPU time, which is part of its own.
    pub nested_cpu_ns: u64,
    /// From its arrival until its first poll began.
    pub queue_ns: u64,
    /// From its arrival until its first poll was over.
    pub first_turn_ns: u64,
    /// What it waited for between its polls, and within them.
    pub pauses: CallPauses,
    /// The first bytes of its arguments, if the extension's author wants them kept.
    pub arguments: Vec<u8>,
}

/// A slow request, or several of one tenant that were answered together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowRequest {
    /// Grows from one to the next, over all tenants.
    pub id: u64,
    /// When it was answered, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Its kind.
    pub class: RequestClass,
    /// What it is about; of several, the first.
    pub subject: RequestSubject,
    /// Requests that were answered together with it, and as slowly: itself among them.
    pub count: u64,
    /// The part of its time in which nothing was done for it.
    pub waiting_ns: u64,
    /// The rest, until its answer had left.
    pub service_ns: u64,
    /// What it waited for beside its turn; of several, the first.
    pub waits: RequestWaits,
    /// The worker that answered it.
    pub worker: u32,
    /// What it did, if it is a call.
    pub call: Option<SlowCall>,
    /// Whose turns that worker served meanwhile, the longest first; its own among them.
    pub turns: Vec<TurnShare>,
    /// The part of its time, up to its end, for which turns are known.
    pub known_ns: u64,
}

/// A tenant's latest slow requests: a new one displaces the oldest.
#[derive(Debug, Default)]
pub struct SlowRequests {
    requests: Mutex<VecDeque<SlowRequest>>,
    /// Nothing is kept before this time, nanoseconds of the workers' clock.
    next_ns: AtomicU64,
    left_out: AtomicU64,
}

impl SlowRequests {
    /// Whether one that was answered at `now_ns` of the workers' clock may be kept; else it is counted as left out.
    /// Where everything is slow, keeping it all would make it slower.
    #[cold]
    pub fn admit(&self, now_ns: u64, count: u64) -> bool {
        let next_ns = self.next_ns.load(Relaxed);
        let admitted = now_ns >= next_ns
            && self.next_ns.compare_exchange(next_ns, now_ns + SLOW_INTERVAL_NS, Relaxed, Relaxed).is_ok();
        if !admitted {
            self.leave_out(count);
        }
        admitted
    }

    /// Counts requests that are not kept.
    pub fn leave_out(&self, count: u64) {
        self.left_out.fetch_add(count, Relaxed);
    }

    /// Keeps a request.
    #[cold]
    pub fn keep(&self, request: SlowRequest) {
        let mut requests = self.requests.lock();
        if requests.len() >= SLOW_REQUESTS {
            requests.pop_front();
        }
        requests.push_back(request);
    }

    /// Slow requests that were not kept.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Relaxed)
    }

    /// The kept requests, oldest first.
    pub fn recent(&self) -> Vec<SlowRequest> {
        self.requests.lock().iter().cloned().collect()
    }

    /// The kept requests with a greater number, oldest first.
    pub fn after(&self, id: u64) -> Vec<SlowRequest> {
        self.requests.lock().iter().filter(|request| request.id > id).cloned().collect()
    }

    /// The one of that number.
    pub fn find(&self, id: u64) -> Option<SlowRequest> {
        self.requests.lock().iter().find(|request| request.id == id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: u64) -> SlowRequest {
        SlowRequest {
            id,
            at_ms: id,
            class: RequestClass::Get,
            subject: RequestSubject::new("get", 1, b"key"),
            count: 1,
            waiting_ns: 1,
            service_ns: 2,
            waits: RequestWaits::default(),
            worker: 0,
            call: None,
            turns: Vec::new(),
            known_ns: 3,
        }
    }

    #[test]
    fn the_latest_are_kept_and_a_flood_of_them_is_counted() {
        let slow = SlowRequests::default();
        let mut kept = 0;
        for id in 0..10 * SLOW_REQUESTS as u64 {
            if slow.admit(id * SLOW_INTERVAL_NS / 2, 3) {
                slow.keep(request(id));
                kept += 1;
            }
        }
        assert_eq!(kept, 5 * SLOW_REQUESTS, "every other one came too early");
        assert_eq!(slow.left_out(), 3 * 5 * SLOW_REQUESTS as u64);
        let recent = slow.recent();
        assert_eq!((recent.len(), recent[0].id), (SLOW_REQUESTS, 8 * SLOW_REQUESTS as u64));
        assert_eq!((slow.find(recent[5].id), slow.find(0)), (Some(recent[5].clone()), None));
        assert_eq!(slow.after(recent[5].id), recent[6..]);
    }

    #[test]
    fn a_subject_has_the_beginning_of_its_key_and_no_more() {
        for len in [0, 1, SLOW_KEY_BYTES - 1, SLOW_KEY_BYTES, SLOW_KEY_BYTES + 1, 500] {
            let key: Vec<u8> = (0..len).map(|at| (at as u8).wrapping_add(1)).collect();
            let subject = RequestSubject::new("put", 9, &key);
            assert_eq!(subject.key_prefix(), &key[..len.min(SLOW_KEY_BYTES)]);
            assert_eq!((subject.key_len(), subject.table), (len, 9));
        }
    }
}
