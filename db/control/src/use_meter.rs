//! Use of tenants that no counter has: the workers' time of their plain requests, and how much of their rate quotas is
//! used. The counters of all tenants are read once a second; requests pay nothing for it.
//!
//! Plain requests are not timed one by one, in any protocol. But a worker counts how long it was busy, and how long
//! calls computed. The rest of a second is divided among tenants by the work of their requests there: each operation,
//! key and step is one, and a long command or a large value is many. So a tenant's part is exact where it is alone;
//! beside others it is as good as the rule that equal work takes equal time.

use hashbrown::HashMap;
use parking_lot::Mutex;
use sandstorm_catalog::{Directory, TenantView};
use sandstorm_metrics::ServerMetrics;
use sandstorm_store::spill::ColdReadCounts;

/// Milliseconds between two readings.
const STEP_MS: u64 = 1_000;

/// What a tenant uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MeteredUse {
    /// Time that workers were busy with its requests other than the computing of calls, nanoseconds since the server
    /// started.
    pub(crate) plain_cpu_ns: u64,
    /// What counts for the quota `requests_per_s`, in the last second.
    pub(crate) requests_per_s: u64,
    /// The same for `cold_reads_per_s`.
    pub(crate) cold_reads_per_s: u64,
    /// The same for `cold_bytes_per_s`.
    pub(crate) cold_bytes_per_s: u64,
}

impl MeteredUse {
    /// What is used of the quotas that are rates.
    pub(crate) fn rates(&self) -> [(&'static str, u64); 3] {
        [
            ("requests_per_s", self.requests_per_s),
            ("cold_reads_per_s", self.cold_reads_per_s),
            ("cold_bytes_per_s", self.cold_bytes_per_s),
        ]
    }
}

/// Meters all tenants: see the head of this file.
#[derive(Debug, Default)]
pub(crate) struct TenantUseMeter(Mutex<UseMeterState>);

#[derive(Debug, Default)]
struct UseMeterState {
    looked_ms: u64,
    /// Of each worker, when they were last read.
    workers: Vec<WorkerTime>,
    tenants: HashMap<u32, MeteredTenant>,
}

/// What a worker did since the server started, or in a step.
#[derive(Clone, Copy, Debug, Default)]
struct WorkerTime {
    busy_ns: u64,
    /// The part of it in which calls computed.
    calls_ns: u64,
}

#[derive(Debug, Default)]
struct MeteredTenant {
    /// Its serial number: another may have its id.
    serial: u64,
    counts: MeteredCounts,
    used: MeteredUse,
}

/// What was counted for a tenant since it was made, or in a step.
#[derive(Clone, Debug, Default)]
struct MeteredCounts {
    /// The work of its requests at each worker.
    work: Vec<u64>,
    /// What counts for its quota of requests.
    requests: u64,
    cold: ColdReadCounts,
}

impl MeteredCounts {
    fn read(view: &TenantView, workers: usize, cold: ColdReadCounts) -> MeteredCounts {
        let mut counts = MeteredCounts { cold, ..MeteredCounts::default() };
        for worker in 0..workers {
            let of = view.tenant.usage.worker(worker);
            let packets = of.packet_work.get();
            let records = of.connection_reads.get() + of.connection_writes.get();
            // What comes by memcached's datagrams counts as records alone.
            counts.work.push(packets + of.connection_work.get().max(records));
            counts.requests += packets + records;
        }
        counts
    }

    fn since(&self, before: &MeteredCounts) -> MeteredCounts {
        let work = self.work.iter().enumerate();
        let work = work.map(|(worker, now)| now.saturating_sub(before.work.get(worker).copied().unwrap_or(0)));
        MeteredCounts {
            work: work.collect(),
            requests: self.requests.saturating_sub(before.requests),
            cold: ColdReadCounts {
                reads: self.cold.reads.saturating_sub(before.cold.reads),
                bytes: self.cold.bytes.saturating_sub(before.cold.bytes),
            },
        }
    }
}

impl TenantUseMeter {
    /// Reads the counters, if a second has passed by a clock that is never set back.
    pub(crate) fn look(&self, directory: &Directory, metrics: &ServerMetrics, clock_ms: u64) {
        let mut state = self.0.lock();
        let passed_ms = clock_ms.saturating_sub(state.looked_ms);
        if passed_ms >= STEP_MS {
            state.looked_ms = clock_ms;
            state.step(directory, metrics, passed_ms);
        }
    }

    /// What a tenant uses; nothing before its first second.
    pub(crate) fn of(&self, view: &TenantView) -> MeteredUse {
        let state = self.0.lock();
        let found = state.tenants.get(&view.tenant.id).filter(|metered| metered.serial == view.tenant.serial);
        found.map_or_else(MeteredUse::default, |metered| metered.used)
    }
}

impl UseMeterState {
    fn step(&mut self, directory: &Directory, metrics: &ServerMetrics, passed_ms: u64) {
        let now = (0..metrics.workers()).filter_map(|worker| metrics.worker(worker)).map(|counters| WorkerTime {
            busy_ns: counters.busy_us.get() * 1_000,
            calls_ns: counters.invocation_cpu_ns.get(),
        });
        let now: Vec<WorkerTime> = now.collect();
        let before = std::mem::replace(&mut self.workers, now.clone());
        let plain_ns: Vec<u64> = now.iter().zip(&before).map(|(now, before)| now.plain_ns_since(before)).collect();
        let is_first = before.is_empty();
        let (snapshot, cold) = (directory.snapshot(), directory.cold_reads());
        let (mut all_work, mut steps) = (vec![0; now.len()], Vec::new());
        for view in snapshot.iter() {
            let (id, serial) = (view.tenant.id, view.tenant.serial);
            let counts = MeteredCounts::read(view, now.len(), cold.get(&id).copied().unwrap_or_default());
            let metered = self.tenants.entry(id).or_default();
            if metered.serial != serial {
                *metered = MeteredTenant { serial, ..MeteredTenant::default() };
                if is_first {
                    // What came before the first look belongs to no step.
                    metered.counts = counts.clone();
                }
            }
            let step = counts.since(&metered.counts);
            metered.counts = counts;
            all_work.iter_mut().zip(&step.work).for_each(|(all, own)| *all += own);
            steps.push((id, step));
        }
        self.tenants.retain(|id, _| snapshot.tenant(*id).is_some());
        for (id, step) in steps {
            let Some(metered) = self.tenants.get_mut(&id) else { continue };
            let parts = plain_ns.iter().zip(&all_work).zip(&step.work);
            let parts = parts.map(|((plain_ns, all), own)| part_of(*plain_ns, *own, *all));
            let per_second = |count: u64| part_of(count, 1_000, passed_ms);
            metered.used = MeteredUse {
                plain_cpu_ns: metered.used.plain_cpu_ns + parts.sum::<u64>(),
                requests_per_s: per_second(step.requests),
                cold_reads_per_s: per_second(step.cold.reads),
                cold_bytes_per_s: per_second(step.cold.bytes),
            };
        }
    }
}

impl WorkerTime {
    /// The busy time since an earlier reading in which no call computed.
    fn plain_ns_since(&self, before: &WorkerTime) -> u64 {
        let busy_ns = self.busy_ns.saturating_sub(before.busy_ns);
        busy_ns.saturating_sub(self.calls_ns.saturating_sub(before.calls_ns))
    }
}

/// `part` of `all` parts of a number; 0 if there are none.
fn part_of(number: u64, part: u64, all: u64) -> u64 {
    let product = u128::from(number) * u128::from(part);
    u64::try_from(product.checked_div(all.into()).unwrap_or(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sandstorm_accounts::TenantUsage;
    use sandstorm_catalog::{DirectoryOptions, NewTenant};
    use sandstorm_store::Epochs;

    use super::*;

    /// A server of two workers whose counters the test writes, second by second.
    struct MeteredServer {
        directory: Arc<Directory>,
        metrics: Arc<ServerMetrics>,
        meter: TenantUseMeter,
        clock_ms: u64,
    }

    impl MeteredServer {
        fn new(tenants: &[&str]) -> MeteredServer {
            let options = DirectoryOptions { workers: 2, ..DirectoryOptions::default() };
            let directory = Directory::with_options(Epochs::new(), options);
            for name in tenants {
                directory.create_tenant(NewTenant::named(name)).expect("a tenant");
            }
            let (metrics, meter) = (ServerMetrics::new(2), TenantUseMeter::default());
            let mut server = MeteredServer { directory, metrics, meter, clock_ms: 0 };
            server.second();
            server
        }

        fn usage(&self, tenant: &str) -> Arc<TenantUsage> {
            Arc::clone(&self.directory.snapshot().by_name(tenant).expect("a tenant").tenant.usage)
        }

        fn used(&self, tenant: &str) -> MeteredUse {
            self.meter.of(self.directory.snapshot().by_name(tenant).expect("a tenant"))
        }

        fn busy(&self, worker: usize, busy_us: u64, calls_us: u64) {
            let counters = self.metrics.worker(worker).expect("a worker");
            counters.busy_us.add(busy_us);
            counters.invocation_cpu_ns.add(calls_us * 1_000);
        }

        fn second(&mut self) {
            self.clock_ms += 1_000;
            self.meter.look(&self.directory, &self.metrics, self.clock_ms);
        }
    }

    #[test]
    fn what_is_left_of_a_workers_time_is_divided_by_the_work_of_all_protocols() {
        let mut server = MeteredServer::new(&["own", "redis", "memcached", "idle", "calls"]);
        server.usage("own").worker(0).packet_work.add(600);
        server.usage("redis").worker(0).connection_work.add(300);
        server.usage("redis").worker(0).connection_reads.add(20);
        server.usage("memcached").worker(0).connection_writes.add(100);
        // At the other worker a tenant is alone, beside calls.
        server.usage("own").worker(1).packet_work.add(1);
        server.usage("calls").worker(1).invocation_cpu_ns.add(400_000_000);
        server.busy(0, 500_000, 100_000);
        server.busy(1, 450_000, 400_000);
        server.second();
        let plain_us = |server: &MeteredServer, name: &str| server.used(name).plain_cpu_ns / 1_000;
        let expected =
            [("own", 240_000 + 50_000), ("redis", 120_000), ("memcached", 40_000), ("idle", 0), ("calls", 0)];
        for (name, expected_us) in expected {
            assert_eq!(plain_us(&server, name), expected_us, "{name}");
        }
        // Half a second is no step, and the next one adds to what was before.
        server.usage("redis").worker(0).connection_work.add(10);
        server.busy(0, 1_000, 0);
        server.meter.look(&server.directory, &server.metrics, server.clock_ms + 500);
        assert_eq!(plain_us(&server, "redis"), 120_000);
        server.second();
        assert_eq!((plain_us(&server, "redis"), plain_us(&server, "own")), (121_000, 290_000));
    }

    #[test]
    fn what_came_before_the_first_look_is_of_no_step_and_a_tenant_that_is_made_again_begins_anew() {
        let mut server = MeteredServer::new(&["a"]);
        server.meter = TenantUseMeter::default();
        server.usage("a").worker(0).packet_work.add(1_000_000);
        server.busy(0, 9_000_000, 0);
        server.second();
        assert_eq!(server.used("a"), MeteredUse::default());
        server.usage("a").worker(0).packet_work.add(5);
        server.busy(0, 70, 0);
        server.second();
        assert_eq!(server.used("a"), MeteredUse { plain_cpu_ns: 70_000, requests_per_s: 5, ..MeteredUse::default() });
        server.directory.delete_tenant("a").expect("it is there");
        server.directory.create_tenant(NewTenant::named("a")).expect("a tenant");
        assert_eq!(server.used("a"), MeteredUse::default());
        server.usage("a").worker(0).packet_work.add(2);
        server.busy(0, 30, 0);
        server.second();
        assert_eq!(server.used("a").plain_cpu_ns, 30_000);
    }

    #[test]
    fn rates_are_those_of_the_last_second() {
        let mut server = MeteredServer::new(&["a"]);
        let usage = server.usage("a");
        usage.worker(0).packet_work.add(300);
        usage.worker(1).connection_reads.add(50);
        usage.worker(1).connection_writes.add(50);
        // Work beyond records is none that the quota counts.
        usage.worker(1).connection_work.add(4_000);
        server.clock_ms += 1_000;
        server.second();
        assert_eq!(server.used("a").rates()[0], ("requests_per_s", 200), "400 in two seconds");
        server.second();
        assert_eq!(server.used("a").rates(), [("requests_per_s", 0), ("cold_reads_per_s", 0), ("cold_bytes_per_s", 0)]);
    }
}
