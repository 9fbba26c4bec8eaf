//! What neighbours cost a tenant: the 99th percentile of its requests in seconds in which others used much of its
//! workers, over that of seconds in which it had them nearly to itself.
//!
//! Each second the counters of all tenants are read, and worker time is divided among tenants: calls by their CPU time,
//! and the rest of a worker's busy time by the number of operations, since plain operations are not timed one by one. A
//! tenant's second counts by the part of its workers' time that others used, each worker weighted by the tenant's own
//! requests there. Seconds in between count as neither kind. Each kind of request is compared with itself, so a tenant
//! that begins to make calls beside its gets does not seem to suffer.

use std::cmp::Reverse;

use hashbrown::HashMap;
use parking_lot::Mutex;
use sandstorm_catalog::{Directory, DirectorySnapshot, TenantView};
use sandstorm_metrics::ServerMetrics;
use sandstorm_metrics::histogram::{DurationCounts, REQUEST_CLASSES};

use crate::limits::{
    BESIDE_PER_MILLE, ISOLATION_BESIDE_HALF_MS, ISOLATION_QUIET_HALF_MS, ISOLATION_REQUESTS, ISOLATION_TENANTS,
    QUIET_PER_MILLE,
};

/// The 99th percentile, of a million.
const P99: u32 = 990_000;
/// Seconds over which a tenant's requests are averaged, to tell the tenants that send most.
const RECENT_SECONDS: u64 = 64;

/// How much longer a tenant's requests of one kind take beside its neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsolationReading {
    /// The tenant.
    pub tenant: u32,
    /// The kind of its requests: a number among [`REQUEST_CLASSES`].
    pub class: usize,
    /// The 99th percentile from arrival to answer, nanoseconds, when others used little of its workers.
    pub quiet_p99_ns: u64,
    /// The same when others used much of them.
    pub beside_p99_ns: u64,
    /// Of a thousand parts of what its workers did then, those that it used itself.
    pub own_per_mille: u64,
}

impl IsolationReading {
    /// The second over the first, in thousandths.
    pub fn per_mille(&self) -> u64 {
        self.beside_p99_ns.saturating_mul(1_000) / self.quiet_p99_ns.max(1)
    }
}

/// Measures the tenants that send most.
#[derive(Debug, Default)]
pub(crate) struct IsolationMeter(Mutex<MeterState>);

#[derive(Debug, Default)]
struct MeterState {
    looked_ms: u64,
    /// Busy time of each worker when it was last read, microseconds.
    busy_us: Vec<u64>,
    tenants: HashMap<u32, CountedTenant>,
    measured: HashMap<u32, MeasuredTenant>,
}

/// What was read of a tenant last.
#[derive(Debug, Default)]
struct CountedTenant {
    /// Its serial number: another may have its id.
    serial: u64,
    workers: Vec<WorkerUse>,
    /// Requests of the last minute or so.
    recent: u64,
}

/// What a tenant uses of a worker, since it was made or in a second.
#[derive(Clone, Copy, Debug, Default)]
struct WorkerUse {
    requests: u64,
    cpu_us: u64,
}

/// A second of a worker.
#[derive(Clone, Copy, Debug, Default)]
struct WorkerSecond {
    busy_us: u64,
    /// Of all tenants.
    all: WorkerUse,
}

/// The kind of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SecondKind {
    /// Others used little of the tenant's workers.
    Quiet,
    /// Others used much of them.
    Beside,
}

/// How long requests took in the seconds of one kind of one to two stretches of time.
#[derive(Debug)]
struct SlidingCounts {
    half_ms: u64,
    begun_ms: u64,
    halves: [Vec<DurationCounts>; 2],
}

/// A tenant that is measured.
#[derive(Debug)]
struct MeasuredTenant {
    serial: u64,
    /// What its histograms had when they were last read.
    before: Vec<DurationCounts>,
    quiet: SlidingCounts,
    beside: SlidingCounts,
    /// Of a thousand parts of what its workers did in seconds beside neighbours, those that it used.
    own_per_mille: Option<u64>,
}

impl IsolationMeter {
    /// Reads the counters, if a second has passed.
    pub(crate) fn look(&self, directory: &Directory, metrics: &ServerMetrics, now_ms: u64) {
        let mut state = self.0.lock();
        let passed_ms = now_ms.abs_diff(state.looked_ms);
        if passed_ms >= 1_000 {
            state.looked_ms = now_ms;
            state.read(&directory.snapshot(), metrics, now_ms, passed_ms);
        }
    }

    /// What is known of all tenants: of each the kinds of requests of which there were enough in seconds of both kinds.
    pub(crate) fn readings(&self) -> Vec<IsolationReading> {
        let state = self.0.lock();
        let mut readings: Vec<IsolationReading> =
            state.measured.iter().flat_map(|(tenant, measured)| measured.readings(*tenant)).collect();
        readings.sort_by_key(|reading| (Reverse(reading.per_mille()), reading.tenant, reading.class));
        readings
    }

    /// What is known of a tenant, the kind of requests that neighbours cost most.
    pub(crate) fn worst_of(&self, tenant: u32) -> Option<IsolationReading> {
        let state = self.0.lock();
        let readings = state.measured.get(&tenant)?.readings(tenant);
        readings.into_iter().max_by_key(IsolationReading::per_mille)
    }
}

impl MeterState {
    fn read(&mut self, snapshot: &DirectorySnapshot, metrics: &ServerMetrics, now_ms: u64, passed_ms: u64) {
        let busy_us: Vec<u64> =
            (0..metrics.workers()).filter_map(|worker| Some(metrics.worker(worker)?.busy_us.get())).collect();
        let before = std::mem::replace(&mut self.busy_us, busy_us);
        let is_first = before.is_empty();
        let grown = self.busy_us.iter().enumerate().map(|(worker, now)| {
            let before = before.get(worker).copied().unwrap_or(*now);
            WorkerSecond { busy_us: now.saturating_sub(before), ..WorkerSecond::default() }
        });
        let mut workers: Vec<WorkerSecond> = grown.collect();
        let mut own: HashMap<u32, Vec<WorkerUse>> = HashMap::new();
        for view in snapshot.iter() {
            let used = self.note(view, workers.len(), is_first);
            for (worker, used) in workers.iter_mut().zip(&used) {
                worker.all.requests += used.requests;
                worker.all.cpu_us += used.cpu_us;
            }
            own.insert(view.tenant.id, used);
        }
        self.tenants.retain(|id, _| own.contains_key(id));
        self.choose(snapshot, now_ms);
        for (id, measured) in &mut self.measured {
            let (Some(view), Some(own)) = (snapshot.tenant(*id), own.get(id)) else { continue };
            let used = WorkerParts::of(&workers, own, passed_ms);
            let kind = used.as_ref().and_then(|used| kind_of(used.neighbours_per_mille));
            if let (Some(used), Some(SecondKind::Beside)) = (used, kind) {
                measured.note_own_part(used.own_of_used_per_mille);
            }
            measured.add(view, kind, now_ms);
        }
    }

    /// Reads a tenant's counters; returns what it used since they were last read.
    fn note(&mut self, view: &TenantView, workers: usize, is_first: bool) -> Vec<WorkerUse> {
        let (tenant, usage) = (&view.tenant, &view.tenant.usage);
        let now: Vec<WorkerUse> = (0..workers)
            .map(|worker| {
                let counters = usage.worker(worker);
                let connections = counters.connection_reads.get() + counters.connection_writes.get();
                let requests = counters.requests.get() + connections;
                WorkerUse { requests, cpu_us: counters.invocation_cpu_ns.get() / 1_000 }
            })
            .collect();
        let seen = self.tenants.entry(tenant.id).or_default();
        if seen.serial != tenant.serial {
            // What it used before the server's first look belongs to no second.
            let workers = if is_first { now.clone() } else { Vec::new() };
            *seen = CountedTenant { serial: tenant.serial, workers, recent: 0 };
        }
        let of_second = now.iter().enumerate().map(|(worker, now)| {
            let before = seen.workers.get(worker).copied().unwrap_or_default();
            let requests = now.requests.saturating_sub(before.requests);
            WorkerUse { requests, cpu_us: now.cpu_us.saturating_sub(before.cpu_us) }
        });
        let of_second: Vec<WorkerUse> = of_second.collect();
        seen.workers = now;
        seen.recent -= seen.recent.div_ceil(RECENT_SECONDS);
        seen.recent += of_second.iter().map(|used| used.requests).sum::<u64>();
        of_second
    }

    /// Chooses the tenants that are measured: those that send most. A measured tenant stays until it sends no more, or
    /// another sends twice as much: its history is worth more than a slightly busier tenant.
    fn choose(&mut self, snapshot: &DirectorySnapshot, now_ms: u64) {
        let tenants = &self.tenants;
        let recent = |id: u32| tenants.get(&id).map_or(0, |seen| seen.recent);
        self.measured.retain(|id, measured| {
            let is_same = tenants.get(id).is_some_and(|seen| seen.serial == measured.serial);
            is_same && recent(*id) > 0
        });
        let mut candidates: Vec<u32> = tenants.keys().copied().collect();
        candidates.retain(|id| recent(*id) > 0 && !self.measured.contains_key(id));
        candidates.sort_by_key(|id| (Reverse(recent(*id)), *id));
        for id in candidates {
            if self.measured.len() >= ISOLATION_TENANTS {
                let weakest = self.measured.keys().copied().min_by_key(|id| (recent(*id), Reverse(*id)));
                let Some(weakest) = weakest.filter(|weakest| recent(id) > 2 * recent(*weakest)) else { break };
                self.measured.remove(&weakest);
            }
            if let Some(view) = snapshot.tenant(id) {
                self.measured.insert(id, MeasuredTenant::new(view, now_ms));
            }
        }
    }
}

/// The shares of a tenant's workers in a second, by user: each worker is weighted by the tenant's own requests there.
struct WorkerParts {
    /// Of a thousand parts of the workers' time, those that others than the tenant used.
    neighbours_per_mille: u64,
    /// Of a thousand parts of what was used, those that the tenant used.
    own_of_used_per_mille: u64,
}

impl WorkerParts {
    /// `None`: the tenant sent no requests.
    fn of(workers: &[WorkerSecond], own: &[WorkerUse], passed_ms: u64) -> Option<WorkerParts> {
        let (mut others_sum, mut own_sum, mut requests) = (0.0, 0.0, 0);
        for (worker, own) in workers.iter().zip(own) {
            let plain_us = worker.busy_us.saturating_sub(worker.all.cpu_us) as f64;
            let own_part = own.requests as f64 / worker.all.requests.max(1) as f64;
            let own_us = own.cpu_us as f64 + plain_us * own_part;
            // A microsecond of a millisecond is one of a thousand parts.
            let weight = own.requests as f64 / passed_ms.max(1) as f64;
            others_sum += (worker.busy_us as f64 - own_us).max(0.0) * weight;
            own_sum += own_us * weight;
            requests += own.requests;
        }
        (requests > 0).then(|| WorkerParts {
            neighbours_per_mille: (others_sum / requests as f64) as u64,
            own_of_used_per_mille: (1_000.0 * own_sum / (own_sum + others_sum).max(f64::MIN_POSITIVE)) as u64,
        })
    }
}

fn kind_of(neighbours_per_mille: u64) -> Option<SecondKind> {
    match neighbours_per_mille {
        0..QUIET_PER_MILLE => Some(SecondKind::Quiet),
        BESIDE_PER_MILLE.. => Some(SecondKind::Beside),
        _ => None,
    }
}

impl MeasuredTenant {
    fn new(view: &TenantView, now_ms: u64) -> MeasuredTenant {
        MeasuredTenant {
            serial: view.tenant.serial,
            before: read_latencies(view),
            quiet: SlidingCounts::new(ISOLATION_QUIET_HALF_MS, now_ms),
            beside: SlidingCounts::new(ISOLATION_BESIDE_HALF_MS, now_ms),
            own_per_mille: None,
        }
    }

    /// Counts what the tenant itself used in a second beside neighbours, as an average of some ten such.
    fn note_own_part(&mut self, per_mille: u64) {
        let before = self.own_per_mille.unwrap_or(per_mille);
        self.own_per_mille = Some((before * 9 + per_mille) / 10);
    }

    /// Counts what was answered since the last look, as of a second of this kind.
    fn add(&mut self, view: &TenantView, kind: Option<SecondKind>, now_ms: u64) {
        let now = read_latencies(view);
        let before = std::mem::replace(&mut self.before, now);
        self.quiet.slide(now_ms);
        self.beside.slide(now_ms);
        let counts = match kind {
            Some(SecondKind::Quiet) => &mut self.quiet,
            Some(SecondKind::Beside) => &mut self.beside,
            None => return,
        };
        for (class, (now, before)) in self.before.iter().zip(&before).enumerate() {
            let new = now.since(before);
            if new.count() > 0 {
                counts.add(class, &new);
            }
        }
    }

    fn readings(&self, tenant: u32) -> Vec<IsolationReading> {
        let of = |class: usize| {
            let (quiet, beside) = (self.quiet.sum(class), self.beside.sum(class));
            let is_enough = quiet.count().min(beside.count()) >= ISOLATION_REQUESTS;
            let (quiet_p99_ns, beside_p99_ns) = (quiet.quantile_ns(P99), beside.quantile_ns(P99));
            let own_per_mille = self.own_per_mille.unwrap_or(0);
            is_enough.then_some(IsolationReading { tenant, class, quiet_p99_ns, beside_p99_ns, own_per_mille })
        };
        (0..REQUEST_CLASSES.len()).filter_map(of).collect()
    }
}

fn read_latencies(view: &TenantView) -> Vec<DurationCounts> {
    view.tenant.usage.latencies().into_iter().map(|class| class.total).collect()
}

impl SlidingCounts {
    fn new(half_ms: u64, now_ms: u64) -> SlidingCounts {
        SlidingCounts { half_ms, begun_ms: now_ms, halves: Default::default() }
    }

    /// Forgets what is too old.
    fn slide(&mut self, now_ms: u64) {
        // A clock that was set back begins anew, too.
        let passed_ms = now_ms.checked_sub(self.begun_ms).unwrap_or(2 * self.half_ms);
        if passed_ms < self.half_ms {
            return;
        }
        let [current, previous] = &mut self.halves;
        let ended = std::mem::take(current);
        *previous = if passed_ms < 2 * self.half_ms { ended } else { Vec::new() };
        self.begun_ms = now_ms;
    }

    fn add(&mut self, class: usize, counts: &DurationCounts) {
        let [current, _] = &mut self.halves;
        current.resize(REQUEST_CLASSES.len(), DurationCounts::default());
        if let Some(sum) = current.get_mut(class) {
            sum.add(counts);
        }
    }

    fn sum(&self, class: usize) -> DurationCounts {
        let mut sum = DurationCounts::default();
        self.halves.iter().filter_map(|half| half.get(class)).for_each(|counts| sum.add(counts));
        sum
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sandstorm_accounts::TenantUsage;
    use sandstorm_catalog::NewTenant;
    use sandstorm_metrics::histogram::RequestClass;
    use sandstorm_store::Epochs;

    use super::*;

    /// A server of one worker whose counters the test writes, second by second.
    struct ClockedServer {
        directory: Arc<Directory>,
        metrics: Arc<ServerMetrics>,
        meter: IsolationMeter,
        now_ms: u64,
    }

    impl ClockedServer {
        fn new(tenants: &[&str]) -> ClockedServer {
            let directory = Directory::new(Epochs::new());
            for name in tenants {
                directory.create_tenant(NewTenant::named(name)).expect("a tenant");
            }
            let (metrics, meter) = (ServerMetrics::new(1), IsolationMeter::default());
            let mut server = ClockedServer { directory, metrics, meter, now_ms: 1_000_000 };
            server.second();
            server
        }

        fn id(&self, tenant: &str) -> u32 {
            self.directory.snapshot().by_name(tenant).expect("a tenant").tenant.id
        }

        fn usage(&self, tenant: &str) -> Arc<TenantUsage> {
            Arc::clone(&self.directory.snapshot().by_name(tenant).expect("a tenant").tenant.usage)
        }

        fn gets(&self, tenant: &str, count: u64, took_ns: u64) {
            let usage = self.usage(tenant);
            usage.worker(0).requests.add(count);
            usage.latency(0).of(RequestClass::Get).record(0, took_ns, count);
        }

        fn computes(&self, tenant: &str, cpu_us: u64) {
            self.usage(tenant).worker(0).invocation_cpu_ns.add(cpu_us * 1_000);
            self.busy(cpu_us);
        }

        fn busy(&self, busy_us: u64) {
            self.metrics.worker(0).expect("a worker").busy_us.add(busy_us);
        }

        fn second(&mut self) {
            self.now_ms += 1_000;
            self.meter.look(&self.directory, &self.metrics, self.now_ms);
        }
    }

    fn is_about(found_ns: u64, exact_ns: u64) -> bool {
        found_ns.abs_diff(exact_ns) <= exact_ns / 50
    }

    #[test]
    fn the_part_that_a_tenant_uses_itself_beside_neighbours_is_known() {
        let mut server = ClockedServer::new(&["flooder", "small"]);
        for is_beside in [false, true] {
            for _ in 0..20 {
                server.gets("flooder", 6_000, if is_beside { 60_000 } else { 20_000 });
                if is_beside {
                    server.gets("small", 4_000, 60_000);
                }
                server.busy(900_000);
                server.second();
            }
        }
        let own = |tenant: &str| server.meter.worst_of(server.id(tenant)).map(|found| found.own_per_mille);
        assert!(own("flooder").is_some_and(|part| part.abs_diff(600) < 10), "{:?}", own("flooder"));
    }

    #[test]
    fn requests_beside_a_neighbour_are_compared_with_those_of_quiet_seconds() {
        let mut server = ClockedServer::new(&["small", "loud"]);
        let small = server.id("small");
        // The tenant alone keeps its worker busy: that is no neighbour's doing.
        for _ in 0..20 {
            server.gets("small", 100, 20_000);
            server.busy(900_000);
            server.second();
        }
        assert_eq!(server.meter.worst_of(small), None, "there was no neighbour");
        // A neighbour that uses a fifth of it: neither quiet nor beside.
        for _ in 0..20 {
            server.gets("small", 100, 5_000_000);
            server.computes("loud", 200_000);
            server.second();
        }
        assert_eq!(server.meter.worst_of(small), None, "seconds in between count for nothing");
        for _ in 0..20 {
            server.gets("small", 100, 60_000);
            server.computes("loud", 800_000);
            server.second();
        }
        let found = server.meter.worst_of(small).expect("enough of both");
        assert_eq!(found.class, RequestClass::Get as usize);
        assert!(is_about(found.quiet_p99_ns, 20_000) && is_about(found.beside_p99_ns, 60_000), "{found:?}");
        assert_eq!(found.own_per_mille, 0, "its own part of the worker's time is small");
        assert!(found.per_mille().abs_diff(3_000) < 100, "{found:?}");
        assert_eq!(server.meter.worst_of(server.id("loud")), None, "it has sent no requests of its own");
        // Without neighbours it is forgotten, the quiet seconds are not.
        for _ in 0..2 * ISOLATION_BESIDE_HALF_MS / 1_000 {
            server.gets("small", 1, 20_000);
            server.second();
        }
        assert_eq!(server.meter.readings(), [], "what neighbours cost is over");
    }

    #[test]
    fn neighbours_that_send_plain_requests_count_by_their_number() {
        let mut server = ClockedServer::new(&["small", "flood"]);
        for second in 0..40 {
            let flood = if second < 20 { 0 } else { 900 };
            server.gets("small", 100, if flood == 0 { 10_000 } else { 15_000 });
            server.gets("flood", flood, 10_000);
            server.busy(100 + flood * 1_000);
            server.second();
        }
        let found = server.meter.worst_of(server.id("small")).expect("enough of both");
        assert!(found.per_mille().abs_diff(1_500) < 60, "{found:?}");
        let flood = server.meter.readings().into_iter().find(|one| one.tenant == server.id("flood"));
        assert_eq!(flood, None, "the other one uses a tenth of the worker");
    }

    #[test]
    fn kinds_of_requests_are_compared_with_their_like() {
        let mut server = ClockedServer::new(&["small", "loud"]);
        for second in 0..40 {
            server.gets("small", 100, 20_000);
            if second >= 20 {
                // It makes calls as well, beside its neighbour alone.
                server.usage("small").latency(0).of(RequestClass::Call).record(0, 9_000_000, 100);
                server.computes("loud", 700_000);
            }
            server.second();
        }
        let found = server.meter.readings();
        assert_eq!(found.len(), 1, "no quiet second had a call: {found:?}");
        assert!(found[0].per_mille().abs_diff(1_000) < 40, "{found:?}");
    }

    #[test]
    fn those_that_send_most_are_measured_and_a_tenant_that_was_made_anew_begins_anew() {
        let names: Vec<String> = (0..2 * ISOLATION_TENANTS).map(|tenant| format!("t{tenant}")).collect();
        let mut server = ClockedServer::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let second = |server: &mut ClockedServer, of: &dyn Fn(u64) -> u64, is_beside: bool| {
            for (number, name) in names.iter().enumerate() {
                server.gets(name, of(number as u64), 10_000);
            }
            server.busy(if is_beside { 900_000 } else { 1_000 });
            server.second();
        };
        for is_beside in [false, true] {
            for _ in 0..40 {
                second(&mut server, &|number| 100 + 10 * number, is_beside);
            }
        }
        let readings = server.meter.readings();
        assert_eq!(readings.len(), ISOLATION_TENANTS);
        let last = names.last().expect("a name");
        assert!(readings.iter().any(|one| one.tenant == server.id(last)), "the one that sends most");
        assert!(readings.iter().all(|one| one.tenant != server.id("t0")), "the one that sends least");
        server.directory.delete_tenant(last).expect("it is there");
        server.directory.create_tenant(NewTenant::named(last)).expect("a tenant");
        server.gets(last, 1_000_000, 10_000);
        server.second();
        assert_eq!(server.meter.worst_of(server.id(last)), None, "nothing is known of this one");
    }
}
