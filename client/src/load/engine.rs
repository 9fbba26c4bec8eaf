//! Runs a load: threads, time, progress, and the report in the end.

use super::connection::{ConnectionContext, GeneratorOptions, LoadConnection, MeasurementWindow};
use super::idle::IdleWaiter;
use super::inserts::InsertTracker;
use super::report::{COARSE_DIGITS, ClassReport, ClassTally, FINE_DIGITS, Report, TenantReport, latency_histogram};
use super::{Class, Options, Pace, TenantLoad, keys};
use crate::{Error, limits};
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use rustix::time::{ClockId, clock_gettime};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// One second of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadProgress {
    /// Seconds since the start; at most 0 during warm-up.
    pub second: i64,
    /// Operations that ended in it.
    pub per_s: u64,
    /// The part of these that ended with an error.
    pub errors_per_s: u64,
    /// Their median latency, microseconds.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
}

impl fmt::Display for LoadProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LoadProgress { second, per_s, errors_per_s, p50_us, p99_us } = self;
        let phase = if *second <= 0 { " (warm-up)" } else { "" };
        write!(
            f,
            "{second:>4} s  {per_s:>10}/s  errors {errors_per_s:>7}/s  p50 {p50_us:>8.1} us  p99 {p99_us:>9.1} us{phase}"
        )
    }
}

/// Counters that the threads share with the one that prints.
struct ProgressCounters {
    done: AtomicU64,
    failed: AtomicU64,
    recent_ns: Mutex<Histogram<u64>>,
    running: AtomicUsize,
}

/// The result of a connection: the tenant, its tallies, and packets resent.
type ConnectionResult = (usize, Vec<Option<Box<ClassTally>>>, u64);

/// The result of a thread.
#[derive(Default)]
struct ThreadResult {
    connections: Vec<ConnectionResult>,
    /// CPU time that it took, in seconds.
    cpu_s: f64,
}

/// Runs the load. `progress` is called about once a second.
///
/// # Errors
/// The reason why a connection failed; later errors are in the report.
pub fn run(options: &Options, progress: &mut dyn FnMut(&LoadProgress)) -> Result<Report, Error> {
    let growths: Vec<InsertTracker> =
        options.tenants.iter().map(|load| InsertTracker::new(load.data.records)).collect();
    let shares = assign_connections(options, &growths);
    let shared = ProgressCounters {
        done: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        recent_ns: Mutex::new(latency_histogram()),
        running: AtomicUsize::new(shares.len()),
    };
    let (barrier, failed) = (Barrier::new(shares.len()), AtomicBool::new(false));
    let results: Vec<Result<ThreadResult, Error>> = std::thread::scope(|scope| {
        let (shared, barrier, failed) = (&shared, &barrier, &failed);
        let threads: Vec<_> = (0..)
            .zip(shares)
            .map(|(index, share)| {
                scope.spawn(move || {
                    let recent_ns = Rc::new(RefCell::new(latency_histogram()));
                    let result = connect(index, &share, &recent_ns, options);
                    failed.fetch_or(result.is_err(), Relaxed);
                    barrier.wait();
                    let result = match result {
                        Ok(_) if failed.load(Relaxed) => Err(Error::Closed),
                        Ok(connections) => Ok(run_connections(connections, &recent_ns, options, shared, index)),
                        Err(error) => Err(error),
                    };
                    shared.running.fetch_sub(1, Relaxed);
                    result
                })
            })
            .collect();
        report_progress(options, shared, progress);
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(Error::Closed))).collect()
    });
    let mut brought = ThreadResult::default();
    let mut error = None;
    for result in results {
        match result {
            Ok(one) => {
                brought.connections.extend(one.connections);
                brought.cpu_s += one.cpu_s;
            }
            // Threads that stopped because another could not connect say `Closed`: the other one's reason is wanted.
            Err(Error::Closed) if error.is_some() => {}
            Err(reason) => error = Some(reason),
        }
    }
    match error {
        Some(error) => Err(error),
        None => Ok(build_report(options, &brought)),
    }
}

fn measurement_window(options: &Options) -> MeasurementWindow {
    let measure_from_ns = options.warm_up.as_nanos() as u64;
    MeasurementWindow {
        start: Instant::now(),
        measure_from_ns,
        end_ns: measure_from_ns + options.duration.as_nanos() as u64,
    }
}

/// A connection to be made: its tenant's number, load and records.
type PlannedConnection<'l> = (usize, &'l TenantLoad, &'l InsertTracker);

/// Deals the connections out to the threads.
fn assign_connections<'l>(options: &'l Options, growths: &'l [InsertTracker]) -> Vec<Vec<PlannedConnection<'l>>> {
    let threads = options.threads.max(1);
    let mut shares: Vec<Vec<PlannedConnection<'l>>> = vec![Vec::new(); threads];
    let connections = (0..)
        .zip(options.tenants.iter().zip(growths))
        .flat_map(|(tenant, (load, growth))| std::iter::repeat_n((tenant, load, growth), load.connections.max(1)));
    for (index, connection) in connections.enumerate() {
        if let Some(share) = shares.get_mut(index % threads) {
            share.push(connection);
        }
    }
    shares.retain(|share| !share.is_empty());
    shares
}

fn connect<'l>(
    thread: u64,
    share: &[PlannedConnection<'l>],
    recent_ns: &Rc<RefCell<Histogram<u64>>>,
    options: &Options,
) -> Result<Vec<LoadConnection<'l>>, Error> {
    let digits = if options.tenants.len() > limits::LOAD_FINE_HISTOGRAM_TENANTS { COARSE_DIGITS } else { FINE_DIGITS };
    let mut connections = Vec::new();
    for (index, (tenant, load, growth)) in (0..).zip(share) {
        let seed = keys::mix64(options.seed ^ keys::mix64(thread << 32 | index));
        let shares = ConnectionContext { growth, recent_ns: Rc::clone(recent_ns) };
        let habits = GeneratorOptions { seed, verify_every: options.verify_every, digits };
        connections.push(LoadConnection::connect(*tenant, load, shares, habits, measurement_window(options))?);
    }
    Ok(connections)
}

/// Distributes the turns of a closed loop over tenants by their rank.
struct ClosedLoopScheduler {
    /// Messages under way, or owed, in all.
    depth: usize,
    /// Sums of the connections' weights.
    sums: Vec<f64>,
    rng: SmallRng,
}

impl ClosedLoopScheduler {
    /// If the run has one: its tenants have no rates of their own.
    fn new(options: &Options, connections: &mut [LoadConnection<'_>], thread: u64) -> Option<ClosedLoopScheduler> {
        let exponent = options.tenant_skew?;
        let mut sums = Vec::new();
        let (mut depth, mut sum) = (0, 0.0);
        for connection in connections {
            let load = options.tenants.get(connection.tenant)?;
            let Pace::Closed { depth: its } = load.pace else { return None };
            connection.enable_credits();
            depth += its.max(1);
            sum += (connection.tenant as f64 + 1.0).powf(-exponent) / load.connections.max(1) as f64;
            sums.push(sum);
        }
        Some(ClosedLoopScheduler {
            depth,
            sums,
            rng: SmallRng::seed_from_u64(keys::mix64(options.seed ^ keys::mix64(!thread))),
        })
    }

    fn deal(&mut self, connections: &mut [LoadConnection<'_>]) {
        let there: usize = connections.iter().map(|connection| connection.has()).sum();
        let all = self.sums.last().copied().unwrap_or(0.0);
        for _ in there..self.depth {
            let drawn = self.rng.random::<f64>() * all;
            let chosen = self.sums.partition_point(|sum| *sum <= drawn).min(connections.len().saturating_sub(1));
            if let Some(connection) = connections.get_mut(chosen) {
                connection.add_credit();
            }
        }
    }
}

/// Runs the connections of one thread until the run has ended and all is answered, or the wait for that is over.
fn run_connections(
    mut connections: Vec<LoadConnection<'_>>,
    recent_ns: &RefCell<Histogram<u64>>,
    options: &Options,
    shared: &ProgressCounters,
    thread: u64,
) -> ThreadResult {
    let mut times = measurement_window(options);
    connections.iter_mut().for_each(|connection| connection.begin(times));
    let longest = longest_deadline(options) + limits::LOAD_DRAIN_TIMEOUT;
    let mut dealer = ClosedLoopScheduler::new(options, &mut connections, thread);
    let bed = options.doze.then(|| IdleWaiter::of(&connections)).flatten();
    let cpu_before_s = cpu_s();
    let mut shared_at_ns = 0;
    // The kernel lets no other thread bring packets here: to yield the core for a moment is to look late.
    let keeps_core = connections.iter().all(|connection| connection.socket().is_none());
    let mut idle_polls = 0;
    // The time at which each connection has something to do, in one array: of hundreds of tenants most have nothing.
    let mut turns_ns: Vec<u64> = vec![0; connections.len()];
    loop {
        let mut busy = false;
        let begun = Instant::now();
        let now_ns = times.ns_at(begun);
        if let Some(dealer) = &mut dealer {
            dealer.deal(&mut connections);
        }
        for (index, (connection, turn_ns)) in connections.iter_mut().zip(&mut turns_ns).enumerate() {
            if *turn_ns <= now_ns {
                busy |= connection.turn(if index == 0 { begun } else { Instant::now() });
                *turn_ns = connection.next_poll_ns();
            }
        }
        if now_ns - shared_at_ns > limits::LOAD_PUBLISH_INTERVAL_NS {
            shared_at_ns = now_ns;
            publish_progress(&mut connections, recent_ns, shared);
            if connections.iter_mut().any(|connection| connection.book().server_stopping) {
                options.stop.store(true, Relaxed);
            }
            if options.stop.load(Relaxed) && now_ns < times.end_ns {
                times.end_ns = now_ns;
                connections.iter_mut().for_each(|connection| connection.end_at(now_ns));
            }
        }
        if now_ns >= times.end_ns {
            let waited = Duration::from_nanos(now_ns - times.end_ns);
            if waited > longest || connections.iter().all(LoadConnection::is_idle) {
                break;
            }
        }
        idle_polls = if busy { 0 } else { idle_polls + 1 };
        match &bed {
            _ if busy => {}
            Some(bed) => bed.sleep(&connections, times.now_ns()),
            None if keeps_core && idle_polls < limits::LOAD_SPINS_BEFORE_YIELD => std::hint::spin_loop(),
            None => std::thread::yield_now(),
        }
    }
    let cpu_s = cpu_s() - cpu_before_s;
    connections.iter_mut().for_each(LoadConnection::abandon);
    publish_progress(&mut connections, recent_ns, shared);
    let bring = |mut connection: LoadConnection<'_>| {
        connection.book().gather_periods();
        (connection.tenant, std::mem::take(&mut connection.book().tallies), connection.retransmissions())
    };
    ThreadResult { connections: connections.into_iter().map(bring).collect(), cpu_s }
}

/// CPU time of this thread, in seconds.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn longest_deadline(options: &Options) -> Duration {
    options.tenants.iter().map(|load| load.config.deadline).max().unwrap_or_default()
}

/// Adds the requests that ended since the last call to the shared counters.
fn publish_progress(
    connections: &mut [LoadConnection<'_>],
    recent_ns: &RefCell<Histogram<u64>>,
    shared: &ProgressCounters,
) {
    for connection in connections {
        let book = connection.book();
        shared.done.fetch_add(std::mem::take(&mut book.done), Relaxed);
        shared.failed.fetch_add(std::mem::take(&mut book.failed), Relaxed);
    }
    let mut recent_ns = recent_ns.borrow_mut();
    let added = shared.recent_ns.lock().add(&*recent_ns);
    debug_assert!(added.is_ok());
    recent_ns.reset();
}

/// Calls `progress` once a second until the threads have ended.
fn report_progress(options: &Options, shared: &ProgressCounters, progress: &mut dyn FnMut(&LoadProgress)) {
    let start = Instant::now();
    let (mut done, mut failed, mut second) = (0, 0, 0);
    while shared.running.load(Relaxed) > 0 {
        std::thread::sleep(limits::LOAD_PROGRESS_POLL);
        if start.elapsed().as_secs() <= second {
            continue;
        }
        second += 1;
        let (done_now, failed_now) = (shared.done.load(Relaxed), shared.failed.load(Relaxed));
        let mut recent_ns = shared.recent_ns.lock();
        let us = |quantile| recent_ns.value_at_quantile(quantile) as f64 / 1000.0;
        let line = LoadProgress {
            second: second as i64 - options.warm_up.as_secs() as i64,
            per_s: done_now - done,
            errors_per_s: failed_now - failed,
            p50_us: us(0.5),
            p99_us: us(0.99),
        };
        recent_ns.reset();
        drop(recent_ns);
        (done, failed) = (done_now, failed_now);
        progress(&line);
    }
}

fn build_report(options: &Options, brought: &ThreadResult) -> Report {
    let measure_from_ns = options.warm_up.as_nanos() as u64;
    let last_ns = brought
        .connections
        .iter()
        .flat_map(|(_, tallies, _)| tallies.iter().flatten())
        .map(|tally| tally.last_ns)
        .max();
    // Stopped early, it counts until then; behind its time, until the last answer.
    let seconds = last_ns.map_or(0.0, |last_ns| last_ns.saturating_sub(measure_from_ns) as f64 / 1e9);
    let stopped = options.stop.load(Relaxed);
    let seconds = if stopped { seconds.max(1e-9) } else { seconds.max(options.duration.as_secs_f64()).max(1e-9) };
    let by_tenant = results_by_tenant(options.tenants.len(), &brought.connections);
    let tenants = options.tenants.iter().zip(by_tenant).map(|(load, connections)| {
        let rows = class_reports(&connections, seconds);
        let mut all = ClassTally::new(FINE_DIGITS);
        connections.iter().flat_map(|(_, tallies, _)| tallies.iter().flatten()).for_each(|tally| all.add(tally));
        let us = |quantile| all.latency_ns.value_at_quantile(quantile) as f64 / 1000.0;
        TenantReport {
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            name: load.name.clone(),
            mix: load.mix.to_string(),
            pace: load.pace.to_string(),
            skew: load.skew.to_string(),
            batch: load.batch,
            per_s: rows.iter().map(|row| row.per_s).sum(),
            retransmissions: connections.iter().map(|(_, _, retransmissions)| retransmissions).sum(),
            rows,
        }
    });
    let tenants: Vec<TenantReport> = tenants.collect();
    Report {
        seconds,
        per_s: tenants.iter().map(|tenant| tenant.per_s).sum(),
        wrong: tenants.iter().flat_map(|tenant| &tenant.rows).map(|row| row.wrong).sum(),
        classes: class_reports(&brought.connections.iter().collect::<Vec<_>>(), seconds),
        sender_cpu_s: brought.cpu_s,
        tenants,
    }
}

/// Groups the threads' results by tenant.
fn results_by_tenant(tenants: usize, brought: &[ConnectionResult]) -> Vec<Vec<&ConnectionResult>> {
    let mut by_tenant = vec![Vec::new(); tenants];
    for connection in brought {
        if let Some(connections) = by_tenant.get_mut(connection.0) {
            connections.push(connection);
        }
    }
    by_tenant
}

/// Makes a row for each class that these connections have asked.
fn class_reports(connections: &[&ConnectionResult], seconds: f64) -> Vec<ClassReport> {
    let mut rows = Vec::new();
    for class in Class::ALL {
        let mut tallies =
            connections.iter().filter_map(|(_, tallies, _)| tallies.get(class.index())?.as_ref()).peekable();
        if tallies.peek().is_some() {
            let mut sum = ClassTally::new(FINE_DIGITS);
            tallies.for_each(|tally| sum.add(tally));
            rows.push(sum.row(class, seconds));
        }
    }
    rows
}
