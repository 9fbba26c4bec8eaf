//! Runs a load: threads, time, progress, and the report in the end.

use super::lane::{Lane, Times};
use super::report::{Report, Tally, TenantReport, histogram};
use super::workload::Class;
use super::{Options, TenantLoad, keys};
use crate::{Error, limits};
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use std::fmt;
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

/// What a thread brings back: for each of its lanes the tenant, its tallies, and packets resent.
type Brought = Vec<(usize, Vec<Option<Box<Tally>>>, u64)>;

/// Runs the load. `progress` is called about once a second.
///
/// # Errors
/// What stood in the way of connecting; what goes wrong later stands in the report.
pub fn run(options: &Options, progress: &mut dyn FnMut(&Progress)) -> Result<Report, Error> {
    let threads = options.threads.max(1);
    let mut shares: Vec<Vec<(usize, &TenantLoad)>> = vec![Vec::new(); threads];
    let connections = (0..)
        .zip(&options.tenants)
        .flat_map(|(tenant, load)| std::iter::repeat_n((tenant, load), load.connections.max(1)));
    for (index, connection) in connections.enumerate() {
        if let Some(share) = shares.get_mut(index % threads) {
            share.push(connection);
        }
    }
    shares.retain(|share| !share.is_empty());
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
                    let result = connect(index, &share, options).inspect_err(|_| failed.store(true, Relaxed));
                    barrier.wait();
                    let result = match result {
                        Ok(_) if failed.load(Relaxed) => Err(Error::Closed),
                        Ok(lanes) => Ok(drive(lanes, options, shared)),
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
    let mut brought = Vec::new();
    let mut error = None;
    for result in results {
        match result {
            Ok(lanes) => brought.extend(lanes),
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

fn connect<'l>(thread: u64, share: &[(usize, &'l TenantLoad)], options: &Options) -> Result<Vec<Lane<'l>>, Error> {
    let mut lanes = Vec::new();
    for (index, (tenant, load)) in (0..).zip(share) {
        let seed = keys::mix(options.seed ^ keys::mix(thread << 32 | index));
        lanes.push(Lane::connect(*tenant, load, seed, options.verify_every, times(options))?);
    }
    Ok(lanes)
}

/// Turns the lanes of one thread until the run has ended and all is answered, or the wait for that is over.
fn drive(mut lanes: Vec<Lane<'_>>, options: &Options, shared: &Shared) -> Brought {
    let mut times = times(options);
    lanes.iter_mut().for_each(|lane| lane.begin(times));
    let longest = lanes_deadline(options) + limits::LOAD_DRAIN;
    let mut shared_at_ns = 0;
    loop {
        let mut busy = false;
        for lane in &mut lanes {
            busy |= lane.turn();
        }
        let now_ns = times.now_ns();
        if now_ns - shared_at_ns > limits::LOAD_SHARE_NS {
            shared_at_ns = now_ns;
            share(&mut lanes, shared);
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
        if !busy {
            std::thread::yield_now();
        }
    }
    lanes.iter_mut().for_each(Lane::abandon);
    share(&mut lanes, shared);
    lanes
        .into_iter()
        .map(|mut lane| (lane.tenant, std::mem::take(&mut lane.book().tallies), lane.retransmissions()))
        .collect()
}

fn lanes_deadline(options: &Options) -> Duration {
    options.tenants.iter().map(|load| load.config.deadline).max().unwrap_or_default()
}

/// Adds what ended since the last time to what is shared.
fn share(lanes: &mut [Lane<'_>], shared: &Shared) {
    let mut recent_ns = shared.recent_ns.lock();
    for lane in lanes {
        let book = lane.book();
        shared.done.fetch_add(std::mem::take(&mut book.done), Relaxed);
        shared.failed.fetch_add(std::mem::take(&mut book.failed), Relaxed);
        let added = recent_ns.add(&book.recent_ns);
        debug_assert!(added.is_ok());
        book.recent_ns.reset();
    }
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
    let last_ns = brought.iter().flat_map(|(_, tallies, _)| tallies.iter().flatten()).map(|tally| tally.last_ns).max();
    // Stopped early, it counts until then; behind its time, until the last answer.
    let seconds = last_ns.map_or(0.0, |last_ns| last_ns.saturating_sub(counts_from_ns) as f64 / 1e9);
    let stopped = options.stop.load(Relaxed);
    let seconds = if stopped { seconds.max(1e-9) } else { seconds.max(options.duration.as_secs_f64()).max(1e-9) };
    let tenants = (0..).zip(&options.tenants).map(|(tenant, load)| {
        let lanes = || brought.iter().filter(|(whose, _, _)| *whose == tenant);
        let mut rows = Vec::new();
        for class in Class::ALL {
            let mut tallies = lanes().filter_map(|(_, tallies, _)| tallies.get(class.index())?.as_ref()).peekable();
            if tallies.peek().is_some() {
                let mut sum = Tally::new();
                tallies.for_each(|tally| sum.add(tally));
                rows.push(sum.row(class, seconds));
            }
        }
        TenantReport {
            name: load.name.clone(),
            mix: load.mix.to_string(),
            pace: load.pace.to_string(),
            skew: load.skew.to_string(),
            batch: load.batch,
            per_s: rows.iter().map(|row| row.per_s).sum(),
            retransmissions: lanes().map(|(_, _, retransmissions)| retransmissions).sum(),
            rows,
        }
    });
    let tenants: Vec<TenantReport> = tenants.collect();
    Report {
        seconds,
        per_s: tenants.iter().map(|tenant| tenant.per_s).sum(),
        wrong: tenants.iter().flat_map(|tenant| &tenant.rows).map(|row| row.wrong).sum(),
        tenants,
    }
}
