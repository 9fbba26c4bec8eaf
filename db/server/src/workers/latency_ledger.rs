//! The ledger of a turn's answers, from which tenants' latencies are counted.
//!
//! A request's time begins when its last packet is received: at the clock reading with which that turn began. It waits
//! until the batch in which it is answered begins. (A message that runs in pieces waits from piece to piece.) It ends
//! with the next reading of the clock after its answer has left, which is that of the next turn: plain requests cost
//! no reading of their own.

use sandstorm_catalog::DirectorySnapshot;
use sandstorm_metrics::histogram::RequestClass;
use sandstorm_net::rpc::OpKind;

/// Adjacent requests of one tenant and kind that waited for as long, and began to be served together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AnsweredRequests {
    tenant: u32,
    class: RequestClass,
    waiting_ns: u64,
    begun_ns: u64,
    count: u64,
}

/// The ledger: see the head of this file. It holds no more than one turn answers.
#[derive(Debug, Default)]
pub(super) struct LatencyLedger {
    entries: Vec<AnsweredRequests>,
    begun_ns: u64,
}

/// The kind of a plain operation; none for those that read and write nothing. Calls are counted when they end.
#[inline]
pub(super) fn class_of(op: OpKind) -> Option<RequestClass> {
    match op {
        OpKind::Get | OpKind::MultiGet => Some(RequestClass::Get),
        OpKind::Put | OpKind::Delete | OpKind::Increment => Some(RequestClass::Put),
        OpKind::Range => Some(RequestClass::Range),
        OpKind::Ping | OpKind::Hello | OpKind::Invoke => None,
    }
}

impl LatencyLedger {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Notes that what is answered from here on began to be served at `now_ns`.
    #[inline]
    pub(super) fn begin_batch(&mut self, now_ns: u64) {
        self.begun_ns = now_ns;
    }

    /// Notes a request that is answered.
    #[inline]
    pub(super) fn note(&mut self, tenant: u32, class: RequestClass, received_ns: u64) {
        let (begun_ns, waiting_ns) = (self.begun_ns, self.begun_ns.saturating_sub(received_ns));
        let entry = AnsweredRequests { tenant, class, waiting_ns, begun_ns, count: 1 };
        match self.entries.last_mut() {
            Some(last) if *last == AnsweredRequests { count: last.count, ..entry } => last.count += 1,
            _ => self.entries.push(entry),
        }
    }

    /// Counts the requests for their tenants, as worker number `worker`: their answers have left by `now_ns`.
    pub(super) fn settle(&mut self, snapshot: &DirectorySnapshot, worker: usize, now_ns: u64) {
        for entry in self.entries.drain(..) {
            let AnsweredRequests { tenant, class, waiting_ns, begun_ns, count } = entry;
            // A tenant may have been deleted since.
            if let Some(view) = snapshot.tenant(tenant) {
                let latency = view.tenant.usage.latency(worker).of(class);
                latency.record(waiting_ns, now_ns.saturating_sub(begun_ns), count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sandstorm_catalog::{Directory, NewTenant};
    use sandstorm_store::Epochs;

    use super::*;

    #[test]
    fn answers_are_counted_for_their_tenant_with_the_time_that_each_waited() {
        let directory = Directory::new(Epochs::new());
        for name in ["one", "two"] {
            directory.create_tenant(NewTenant::named(name)).expect("a tenant");
        }
        let snapshot = directory.snapshot();
        let id = |name: &str| snapshot.by_name(name).expect("a tenant").tenant.id;
        let mut ledger = LatencyLedger::default();
        ledger.begin_batch(10_000);
        (0..3).for_each(|_| ledger.note(id("one"), RequestClass::Get, 10_000));
        ledger.note(id("two"), RequestClass::Put, 4_000);
        ledger.begin_batch(14_000);
        ledger.note(id("one"), RequestClass::Get, 10_000);
        ledger.note(u32::MAX, RequestClass::Get, 10_000);
        assert_eq!(ledger.entries.len(), 4, "adjacent ones are one entry");
        ledger.settle(&snapshot, 0, 20_000);
        assert!(ledger.is_empty());
        let read = |name: &str, class: RequestClass| {
            let counts = snapshot.by_name(name).expect("a tenant").tenant.usage.latencies()[class as usize].clone();
            (counts.total.count(), counts.total.sum_ns, counts.waiting.sum_ns, counts.service.sum_ns)
        };
        assert_eq!(read("one", RequestClass::Get), (4, 3 * 10_000 + 10_000, 4_000, 3 * 10_000 + 6_000));
        assert_eq!(read("two", RequestClass::Put), (1, 16_000, 6_000, 10_000));
        assert_eq!(read("two", RequestClass::Get), (0, 0, 0, 0));
    }
}
