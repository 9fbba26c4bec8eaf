//! The thread that moves tenants' home workers after their load. It looks at the workers' counters every
//! [`HOME_WINDOW_MS`] milliseconds, and at those of tenants only while a worker is busy; [`HomeBalance`] decides.
//!
//! A new home is a change of the directory, so everything that depends on it follows: clients over UDP are told and say
//! hello at the new home's port, connections are handed over, and calls of this process go there. What is under way
//! ends where it is.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use sandstorm_accounts::HomeMoveRecord;
use sandstorm_catalog::{Directory, DirectorySnapshot, TenantView};
use sandstorm_metrics::ServerMetrics;

use crate::home_balance::{HomeBalance, HomeLoad, HomeMove};
use crate::limits::homes::{HOME_BUSY_LOAD, HOME_WINDOW_MS, MOST_REQUEST_US};

/// What each worker has done for each tenant, by its serial number.
type TenantWork = HashMap<u64, Vec<WorkCounts>>;

/// The running thread; stops when dropped.
pub struct HomeBalancer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HomeBalancer {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn start(directory: Arc<Directory>, metrics: Arc<ServerMetrics>) -> io::Result<HomeBalancer> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("homes".into()).spawn(move || {
            let mut meter = LoadMeter::new(&metrics);
            let mut balance = HomeBalance::new(metrics.workers());
            while !stopped.load(Relaxed) {
                std::thread::park_timeout(Duration::from_millis(HOME_WINDOW_MS));
                let snapshot = directory.snapshot();
                match meter.end_window(&snapshot, &metrics) {
                    Some(loads) => {
                        balance.end_window(&loads).iter().for_each(|one| make(one, &directory, &snapshot));
                    }
                    None => balance.interrupt(),
                }
            }
        })?;
        Ok(HomeBalancer { stop, thread: Some(thread) })
    }
}

impl Drop for HomeBalancer {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the thread that moves home workers had panicked");
            }
        }
    }
}

/// Makes a move, and notes it for the event that tells of it.
fn make(one: &HomeMove, directory: &Directory, snapshot: &DirectorySnapshot) {
    let Some(view) = snapshot.tenant(one.tenant) else { return };
    match directory.move_home(one.tenant, one.from, one.to) {
        Ok(true) => {
            let per_mille = |load: f64| (load * 1_000.0).round() as u32;
            view.tenant.usage.record_home_move(HomeMoveRecord {
                from: one.from,
                to: one.to,
                per_mille: per_mille(one.load),
                from_per_mille: per_mille(one.from_load),
                to_per_mille: per_mille(one.to_load),
            });
        }
        // A command has changed it meanwhile.
        Ok(false) => {}
        // Such as a journal that takes no changes now. The tenant is looked at again after its stay.
        Err(error) => {
            tracing::warn!(tenant = &*view.tenant.name, home_worker = one.to, %error, "a home worker is not moved");
        }
    }
}

/// Counts of a tenant at one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WorkCounts {
    /// CPU time of its calls, nanoseconds.
    call_ns: u64,
    /// The work of its packets, and that of its connections' commands, in plain requests.
    requests: u64,
}

impl WorkCounts {
    fn of(view: &TenantView, worker: usize) -> WorkCounts {
        let counters = view.tenant.usage.worker(worker);
        let requests = counters.packet_work.get() + counters.connection_work.get();
        WorkCounts { call_ns: counters.invocation_cpu_ns.get(), requests }
    }

    fn since(self, before: WorkCounts) -> WorkCounts {
        WorkCounts {
            call_ns: self.call_ns.saturating_sub(before.call_ns),
            requests: self.requests.saturating_sub(before.requests),
        }
    }
}

/// What tenants take of the workers' time, from counters that grow. A tenant has the CPU time of its calls. What a
/// worker was busy beside calls is divided by the numbers of requests, as far as requests explain it.
struct LoadMeter {
    begun: Instant,
    /// Of each worker, the microseconds for which it was busy.
    busy_us: Vec<u64>,
    /// The counts at the end of the last window, by the tenants' serial numbers; empty if they were not read then.
    counts: TenantWork,
}

impl LoadMeter {
    fn new(metrics: &ServerMetrics) -> LoadMeter {
        LoadMeter { begun: Instant::now(), busy_us: busy_us(metrics), counts: HashMap::new() }
    }

    /// Ends a window. `None`: no worker was busy, or this is the first window in which one was.
    fn end_window(&mut self, snapshot: &DirectorySnapshot, metrics: &ServerMetrics) -> Option<Vec<HomeLoad>> {
        let now = Instant::now();
        let window_us = now.duration_since(std::mem::replace(&mut self.begun, now)).as_micros().max(1) as f64;
        let before_us = std::mem::replace(&mut self.busy_us, busy_us(metrics));
        let shares: Vec<f64> = self
            .busy_us
            .iter()
            .zip(before_us)
            // A turn that began before the window counts where it ends.
            .map(|(now_us, before_us)| (now_us.saturating_sub(before_us) as f64 / window_us).min(1.0))
            .collect();
        if !shares.iter().any(|share| *share >= HOME_BUSY_LOAD) {
            self.counts.clear();
            return None;
        }
        let read = |view: &TenantView| (0..shares.len()).map(|worker| WorkCounts::of(view, worker)).collect::<Vec<_>>();
        let counts = snapshot.iter().map(|view| (view.tenant.serial, read(view))).collect();
        let before = std::mem::replace(&mut self.counts, counts);
        (!before.is_empty()).then(|| loads(snapshot, (&before, &self.counts), &shares, window_us))
    }
}

/// The loads of all tenants. `shares`: the part of the window for which each worker was busy.
fn loads(
    snapshot: &DirectorySnapshot,
    (before, now): (&TenantWork, &TenantWork),
    shares: &[f64],
    window_us: f64,
) -> Vec<HomeLoad> {
    let nothing = vec![WorkCounts::default(); shares.len()];
    let since = |view: &TenantView| -> Vec<WorkCounts> {
        // A tenant that was made in this window began with nothing.
        let before = before.get(&view.tenant.serial).unwrap_or(&nothing);
        let now = now.get(&view.tenant.serial).unwrap_or(before);
        now.iter().zip(before).map(|(now, before)| now.since(*before)).collect()
    };
    let all: Vec<(&TenantView, Vec<WorkCounts>)> = snapshot.iter().map(|view| (&**view, since(view))).collect();
    let call_share = |counts: &WorkCounts| counts.call_ns as f64 / 1_000.0 / window_us;
    // What each worker was busy for beside calls, for each request.
    let by_request: Vec<f64> = shares
        .iter()
        .enumerate()
        .map(|(worker, share)| {
            let of = |sum: fn(&WorkCounts) -> f64| all.iter().map(|(_, counts)| sum(&counts[worker])).sum::<f64>();
            let calls = of(|counts| counts.call_ns as f64) / 1_000.0 / window_us;
            let requests = of(|counts| counts.requests as f64);
            // Handshakes and datagrams of no tenant must not make one with a few requests move.
            let most = requests * MOST_REQUEST_US / window_us;
            if requests > 0.0 { (share - calls).max(0.0).min(most) / requests } else { 0.0 }
        })
        .collect();
    let load_of = |(view, counts): (&TenantView, Vec<WorkCounts>)| {
        let load = counts
            .iter()
            .zip(&by_request)
            .map(|(counts, by_request)| call_share(counts) + counts.requests as f64 * by_request)
            .sum();
        let tenant = &view.tenant;
        HomeLoad { tenant: tenant.id, home: tenant.home_worker, is_fixed: tenant.home_fixed, load }
    };
    all.into_iter().map(load_of).collect()
}

fn busy_us(metrics: &ServerMetrics) -> Vec<u64> {
    let workers = 0..metrics.workers();
    workers.map(|worker| metrics.worker(worker).map_or(0, |counters| counters.busy_us.get())).collect()
}

#[cfg(test)]
mod tests {
    use sandstorm_catalog::{DirectoryOptions, NewTenant};
    use sandstorm_store::Epochs;

    use super::*;

    fn directory() -> Arc<Directory> {
        let options = DirectoryOptions { workers: 2, ..DirectoryOptions::default() };
        let directory = Directory::with_options(Epochs::new(), options);
        for (name, home_worker) in [("calls", None), ("plain", None), ("redis", None), ("fixed", Some(1))] {
            let new = NewTenant { home_worker, ..NewTenant::named(name) };
            directory.create_tenant(new).expect("a tenant");
        }
        directory
    }

    #[test]
    fn calls_count_by_their_time_and_requests_share_what_is_left_of_a_workers_time() {
        let directory = directory();
        let snapshot = directory.snapshot();
        let view = |name: &str| snapshot.by_name(name).expect("a tenant");
        let read = || -> TenantWork {
            let counts = |view: &Arc<TenantView>| (0..2).map(|worker| WorkCounts::of(view, worker)).collect();
            snapshot.iter().map(|view| (view.tenant.serial, counts(view))).collect()
        };
        view("plain").tenant.usage.worker(0).packet_work.add(1_000_000);
        let before = read();
        // Of a second: worker 0 is busy for 0.8 s, half a second of it with calls; worker 1 has taken calls over.
        view("calls").tenant.usage.worker(0).invocation_cpu_ns.add(500_000_000);
        view("calls").tenant.usage.worker(1).invocation_cpu_ns.add(250_000_000);
        view("plain").tenant.usage.worker(0).packet_work.add(100_000);
        view("redis").tenant.usage.worker(0).connection_work.add(200_000);
        let loads = loads(&snapshot, (&before, &read()), &[0.8, 0.25], 1e6);
        let load = |name: &str| {
            let found = loads.iter().find(|one| one.tenant == view(name).tenant.id).expect("a load");
            ((found.load * 1_000.0).round() as u32, found.is_fixed)
        };
        let found = ["calls", "plain", "redis", "fixed"].map(load);
        assert_eq!(found, [(750, false), (100, false), (200, false), (0, true)]);
    }

    #[test]
    fn time_that_no_request_explains_is_no_tenants() {
        let directory = directory();
        let snapshot = directory.snapshot();
        let view = |name: &str| snapshot.by_name(name).expect("a tenant");
        let counts = |requests: [u64; 2]| -> TenantWork {
            let of = |requests: u64| vec![WorkCounts { call_ns: 0, requests }, WorkCounts::default()];
            [("plain", requests[0]), ("redis", requests[1])]
                .map(|(name, requests)| (view(name).tenant.serial, of(requests)))
                .into()
        };
        let load_of = |requests: [u64; 2], name: &str| {
            let loads = loads(&snapshot, (&counts([0, 0]), &counts(requests)), &[0.9, 0.0], 1e6);
            loads.iter().find(|one| one.tenant == view(name).tenant.id).expect("a load").load
        };
        let few = load_of([10, 0], "plain");
        assert!(few > 0.0 && few <= 10.0 * MOST_REQUEST_US / 1e6 + 1e-9, "{few}: the rest were handshakes");
        assert!((load_of([450_000, 450_000], "redis") - 0.45).abs() < 1e-6, "all of it, where requests explain it");
    }

    #[test]
    fn a_move_is_made_counted_and_noted_unless_the_home_is_fixed_or_elsewhere() {
        let directory = directory();
        let snapshot = directory.snapshot();
        let tenant = |name: &str| Arc::clone(&directory.snapshot().by_name(name).expect("a tenant").tenant);
        assert_eq!((tenant("calls").home_worker, tenant("fixed").home_worker), (0, 1));
        let wanted = |name: &str, from: u32, to: u32| {
            let (load, from_load, to_load) = (0.5, 1.0, 0.25);
            make(&HomeMove { tenant: tenant(name).id, from, to, load, from_load, to_load }, &directory, &snapshot);
        };
        wanted("fixed", 1, 0);
        wanted("calls", 1, 0);
        wanted("calls", 0, 7);
        assert_eq!((tenant("calls").home_worker, tenant("fixed").home_worker), (0, 1));
        assert_eq!(directory.homes_moved(), 0);
        wanted("calls", 0, 1);
        assert_eq!((tenant("calls").home_worker, tenant("calls").home_fixed), (1, false));
        let noted = tenant("calls").usage.home_moves_after(0).entries;
        let moved = HomeMoveRecord { from: 0, to: 1, per_mille: 500, from_per_mille: 1_000, to_per_mille: 250 };
        assert_eq!((noted, directory.homes_moved()), (vec![moved], 1));
    }
}
