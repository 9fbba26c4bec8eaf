//! Runs a load: threads, time, progress, and the report in the end.

use super::doze::Bed;
use super::growth::Growth;
use super::lane::{Habits, Lane, Shares, Times};
use super::report::{COARSE_DIGITS, FINE_DIGITS, Report, Row, Tally, TenantReport, histogram};
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
pub struct Progress {
    /// Seconds since the start; at most 0 during warm-up.
    pub second: i64,
    /// Operations that ended in it.
    pub per_s: u64,
    /// Of these, those with an error.
    pub errors_per_s: u64,
    /// Their median latency, microseconds.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress { second, per_s, errors_per_s, p50_us, p99_us } = self;
        let phase = if *second <= 0 { " (warm-up)" } else { "" };
        write!(
            f,
            "{second:>4} s  {per_s:>10}/s  errors {errors_per_s:>7}/s  p50 {p50_us:>8.1} us  p99 {p99_us:>9.1} us{phase}"
        )
    }
}

/// What the threads share with the one that prints.
struct Shared {
    done: AtomicU64,
    failed: AtomicU64,
    recent_ns: Mutex<Histogram<u64>>,
    running: AtomicUsize,
}

/// What a lane brings back: the tenant, its tallies, and packets resent.
type BroughtLane = (usize, Vec<Option<Box<Tally>>>, u64);

/// What a thread brings back.
#[derive(Default)]
struct Brought {
    lanes: Vec<BroughtLane>,
    /// CPU time that it took, in seconds.
    cpu_s: f64,
}

/// Runs the load. `progress` is called about once a second.
///
/// # Errors
/// What stood in the way of connecting; what goes wrong later stands in the report.
pub fn run(options: &Options, progress: &mut dyn FnMut(&Progress)) -> Result<Report, Error> {
    let growths: Vec<Growth> = options.tenants.iter().map(|load| Growth::new(load.data.records)).collect();
    let shares = deal(options, &growths);
    let shared = Shared {
        done: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        recent_ns: Mutex::new(histogram()),
        running: AtomicUsize::new(shares.len()),
    };
    let (barrier, failed) = (Barrier::new(shares.len()), AtomicBool::new(false));
    let results: Vec<Result<Brought, Error>> = std::thread::scope(|scope| {
        let (shared, barrier, failed) = (&shared, &barrier, &failed);
        let threads: Vec<_> = (0..)
            .zip(shares)
            .map(|(index, share)| {
                scope.spawn(move || {
                    let recent_ns = Rc::new(RefCell::new(histogram()));
                    let result = connect(index, &share, &recent_ns, options);
                    failed.fetch_or(result.is_err(), Relaxed);
                    barrier.wait();
                    let result = match result {
                        Ok(_) if failed.load(Relaxed) => Err(Error::Closed),
                        Ok(lanes) => Ok(drive(lanes, &recent_ns, options, shared, index)),
                        Err(error) => Err(error),
                    };
                    shared.running.fetch_sub(1, Relaxed);
                    result
                })
            })
            .collect();
        watch(options, shared, progress);
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(Error::Closed))).collect()
    });
    let mut brought = Brought::default();
    let mut error = None;
    for result in results {
        match result {
            Ok(one) => {
                brought.lanes.extend(one.lanes);
                brought.cpu_s += one.cpu_s;
            }
            // Threads that stopped because another could not connect say `Closed`: the other one's reason is wanted.
            Err(Error::Closed) if error.is_some() => {}
            Err(reason) => error = Some(reason),
        }
    }
    match error {
        Some(error) => Err(error),
        None => Ok(report(options, &brought)),
    }
}

fn times(options: &Options) -> Times {
    let counts_from_ns = options.warm_up.as_nanos() as u64;
    Times { start: Instant::now(), counts_from_ns, ends_ns: counts_from_ns + options.duration.as_nanos() as u64 }
}

/// A connection to be made: its tenant's number, load and records.
type Place<'l> = (usize, &'l TenantLoad, &'l Growth);

/// Deals the connections out to the threads.
fn deal<'l>(options: &'l Options, growths: &'l [Growth]) -> Vec<Vec<Place<'l>>> {
    let threads = options.threads.max(1);
    let mut shares: Vec<Vec<Place<'l>>> = vec![Vec::new(); threads];
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
    share: &[Place<'l>],
    recent_ns: &Rc<RefCell<Histogram<u64>>>,
    options: &Options,
) -> Result<Vec<Lane<'l>>, Error> {
    let digits = if options.tenants.len() > limits::LOAD_FINE_TENANTS { COARSE_DIGITS } else { FINE_DIGITS };
    let mut lanes = Vec::new();
    for (index, (tenant, load, growth)) in (0..).zip(share) {
        let seed = keys::mix(options.seed ^ keys::mix(thread << 32 | index));
        let shares = Shares { growth, recent_ns: Rc::clone(recent_ns) };
        let habits = Habits { seed, verify_every: options.verify_every, digits };
        lanes.push(Lane::connect(*tenant, load, shares, habits, times(options))?);
    }
    Ok(lanes)
}

/// Deals the turns of a closed loop out to tenants by their rank.
struct Dealer {
    /// Messages under way, or owed, in all.
    depth: usize,
    /// Sums of the lanes' weights.
    sums: Vec<f64>,
    rng: SmallRng,
}

impl Dealer {
    /// If the run has one: its tenants have no rates of their own.
    fn new(options: &Options, lanes: &mut [Lane<'_>], thread: u64) -> Option<Dealer> {
        let exponent = options.tenant_skew?;
        let mut sums = Vec::new();
        let (mut depth, mut sum) = (0, 0.0);
        for lane in lanes {
            let load = options.tenants.get(lane.tenant)?;
            let Pace::Closed { depth: its } = load.pace else { return None };
            lane.await_turns();
            depth += its.max(1);
            sum += (lane.tenant as f64 + 1.0).powf(-exponent) / load.connections.max(1) as f64;
            sums.push(sum);
        }
        Some(Dealer { depth, sums, rng: SmallRng::seed_from_u64(keys::mix(options.seed ^ keys::mix(!thread))) })
    }

    fn deal(&mut self, lanes: &mut [Lane<'_>]) {
        let there: usize = lanes.iter().map(|lane| lane.has()).sum();
        let all = self.sums.last().copied().unwrap_or(0.0);
        for _ in there..self.depth {
            let drawn = self.rng.random::<f64>() * all;
            let whose = self.sums.partition_point(|sum| *sum <= drawn).min(lanes.len().saturating_sub(1));
            if let Some(lane) = lanes.get_mut(whose) {
                lane.owe();
            }
        }
    }
}

/// Turns the lanes of one thread until the run has ended and all is answered, or the wait for that is over.
fn drive(
    mut lanes: Vec<Lane<'_>>,
    recent_ns: &RefCell<Histogram<u64>>,
    options: &Options,
    shared: &Shared,
    thread: u64,
) -> Brought {
    let mut times = times(options);
    lanes.iter_mut().for_each(|lane| lane.begin(times));
    let longest = lanes_deadline(options) + limits::LOAD_DRAIN;
    let mut dealer = Dealer::new(options, &mut lanes, thread);
    let bed = options.doze.then(|| Bed::of(&lanes)).flatten();
    let cpu_before_s = cpu_s();
    let mut shared_at_ns = 0;
    // The kernel lets nobody else bring packets here: to give the core away for a moment is to look late.
    let keeps_core = lanes.iter().all(|lane| lane.socket().is_none());
    let mut looked_in_vain = 0;
    // When each lane has something to do, side by side: of hundreds of tenants most have nothing.
    let mut turns_ns: Vec<u64> = vec![0; lanes.len()];
    loop {
        let mut busy = false;
        let begun = Instant::now();
        let now_ns = times.ns_at(begun);
        if let Some(dealer) = &mut dealer {
            dealer.deal(&mut lanes);
        }
        for (index, (lane, turn_ns)) in lanes.iter_mut().zip(&mut turns_ns).enumerate() {
            if *turn_ns <= now_ns {
                busy |= lane.turn(if index == 0 { begun } else { Instant::now() });
                *turn_ns = lane.next_turn_ns();
            }
        }
        if now_ns - shared_at_ns > limits::LOAD_SHARE_NS {
            shared_at_ns = now_ns;
            share(&mut lanes, recent_ns, shared);
            if lanes.iter_mut().any(|lane| lane.book().server_stops) {
                options.stop.store(true, Relaxed);
            }
            if options.stop.load(Relaxed) && now_ns < times.ends_ns {
                times.ends_ns = now_ns;
                lanes.iter_mut().for_each(|lane| lane.end_at(now_ns));
            }
        }
        if now_ns >= times.ends_ns {
            let waited = Duration::from_nanos(now_ns - times.ends_ns);
            if waited > longest || lanes.iter().all(Lane::is_idle) {
                break;
            }
        }
        looked_in_vain = if busy { 0 } else { looked_in_vain + 1 };
        match &bed {
            _ if busy => {}
            Some(bed) => bed.sleep(&lanes, times.now_ns()),
            None if keeps_core && looked_in_vain < limits::LOAD_LOOKS_IN_VAIN => std::hint::spin_loop(),
            None => std::thread::yield_now(),
        }
    }
    let cpu_s = cpu_s() - cpu_before_s;
    lanes.iter_mut().for_each(Lane::abandon);
    share(&mut lanes, recent_ns, shared);
    let bring = |mut lane: Lane<'_>| (lane.tenant, std::mem::take(&mut lane.book().tallies), lane.retransmissions());
    Brought { lanes: lanes.into_iter().map(bring).collect(), cpu_s }
}

/// CPU time of this thread, in seconds.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn lanes_deadline(options: &Options) -> Duration {
    options.tenants.iter().map(|load| load.config.deadline).max().unwrap_or_default()
}

/// Adds what ended since the last time to what is shared.
fn share(lanes: &mut [Lane<'_>], recent_ns: &RefCell<Histogram<u64>>, shared: &Shared) {
    for lane in lanes {
        let book = lane.book();
        shared.done.fetch_add(std::mem::take(&mut book.done), Relaxed);
        shared.failed.fetch_add(std::mem::take(&mut book.failed), Relaxed);
    }
    let mut recent_ns = recent_ns.borrow_mut();
    let added = shared.recent_ns.lock().add(&*recent_ns);
    debug_assert!(added.is_ok());
    recent_ns.reset();
}

/// Calls `progress` once a second until the threads have ended.
fn watch(options: &Options, shared: &Shared, progress: &mut dyn FnMut(&Progress)) {
    let start = Instant::now();
    let (mut done, mut failed, mut second) = (0, 0, 0);
    while shared.running.load(Relaxed) > 0 {
        std::thread::sleep(limits::LOAD_WATCH);
        if start.elapsed().as_secs() <= second {
            continue;
        }
        second += 1;
        let (done_now, failed_now) = (shared.done.load(Relaxed), shared.failed.load(Relaxed));
        let mut recent_ns = shared.recent_ns.lock();
        let us = |quantile| recent_ns.value_at_quantile(quantile) as f64 / 1000.0;
        let line = Progress {
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

fn report(options: &Options, brought: &Brought) -> Report {
    let counts_from_ns = options.warm_up.as_nanos() as u64;
    let last_ns =
        brought.lanes.iter().flat_map(|(_, tallies, _)| tallies.iter().flatten()).map(|tally| tally.last_ns).max();
    // Stopped early, it counts until then; behind its time, until the last answer.
    let seconds = last_ns.map_or(0.0, |last_ns| last_ns.saturating_sub(counts_from_ns) as f64 / 1e9);
    let stopped = options.stop.load(Relaxed);
    let seconds = if stopped { seconds.max(1e-9) } else { seconds.max(options.duration.as_secs_f64()).max(1e-9) };
    let by_tenant = lanes_of(options.tenants.len(), &brought.lanes);
    let tenants = options.tenants.iter().zip(by_tenant).map(|(load, lanes)| {
        let rows = rows(&lanes, seconds);
        let mut all = Tally::new(FINE_DIGITS);
        lanes.iter().flat_map(|(_, tallies, _)| tallies.iter().flatten()).for_each(|tally| all.add(tally));
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
            retransmissions: lanes.iter().map(|(_, _, retransmissions)| retransmissions).sum(),
            rows,
        }
    });
    let tenants: Vec<TenantReport> = tenants.collect();
    Report {
        seconds,
        per_s: tenants.iter().map(|tenant| tenant.per_s).sum(),
        wrong: tenants.iter().flat_map(|tenant| &tenant.rows).map(|row| row.wrong).sum(),
        classes: rows(&brought.lanes.iter().collect::<Vec<_>>(), seconds),
        sender_cpu_s: brought.cpu_s,
        tenants,
    }
}

/// What the threads have brought, by tenant.
fn lanes_of(tenants: usize, brought: &[BroughtLane]) -> Vec<Vec<&BroughtLane>> {
    let mut by_tenant = vec![Vec::new(); tenants];
    for lane in brought {
        if let Some(lanes) = by_tenant.get_mut(lane.0) {
            lanes.push(lane);
        }
    }
    by_tenant
}

/// A row for each class that these lanes have asked.
fn rows(lanes: &[&BroughtLane], seconds: f64) -> Vec<Row> {
    let mut rows = Vec::new();
    for class in Class::ALL {
        let mut tallies = lanes.iter().filter_map(|(_, tallies, _)| tallies.get(class.index())?.as_ref()).peekable();
        if tallies.peek().is_some() {
            let mut sum = Tally::new(FINE_DIGITS);
            tallies.for_each(|tally| sum.add(tally));
            rows.push(sum.row(class, seconds));
        }
    }
    rows
}
