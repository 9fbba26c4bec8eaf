//! Duration of operations while the table doubles, and while it does not.

use std::time::Instant;

use super::{BenchStore, Shuffle};

/// Nanoseconds above which the benchmark checks whether the thread was descheduled meanwhile.
const LONG_NS: u32 = 20_000;

/// Durations of single operations.
#[derive(Default)]
struct OperationTimes {
    ns: Vec<u32>,
    /// Durations of operations during which the thread was descheduled.
    away_ns: Vec<u32>,
    switches: u64,
}

/// Number of times that this thread was descheduled.
fn switches() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    line.and_then(|line| line.trim().parse().ok()).unwrap_or(0)
}

impl OperationTimes {
    fn new() -> OperationTimes {
        OperationTimes { switches: switches(), ..OperationTimes::default() }
    }

    fn time<T>(&mut self, operation: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let answer = operation();
        let took_ns = u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX);
        if took_ns > LONG_NS {
            let switches = switches();
            if std::mem::replace(&mut self.switches, switches) != switches {
                self.away_ns.push(took_ns);
                return answer;
            }
        }
        self.ns.push(took_ns);
        answer
    }

    /// Prints the distribution; returns p99.9 and the maximum.
    fn print(mut self, name: &str) -> [f64; 2] {
        self.ns.sort_unstable();
        let at = |share: f64| self.ns.get((self.ns.len() as f64 * share) as usize).copied().unwrap_or(0);
        let longest = self.ns.last().copied().unwrap_or(0);
        let away_ms = self.away_ns.iter().map(|ns| f64::from(*ns)).sum::<f64>() / 1e6;
        println!(
            "  {name}: n {}, p50 {} ns, p99 {} ns, p99.9 {} ns, p99.99 {} ns, longest {longest} ns; away {} times, {away_ms:.0} ms",
            self.ns.len(),
            at(0.5),
            at(0.99),
            at(0.999),
            at(0.9999),
            self.away_ns.len(),
        );
        [f64::from(at(0.999)), f64::from(longest)]
    }
}

/// Doubles a table twice, from `records` on.
pub(super) fn run(records: u64) {
    let mut store = BenchStore::new();
    (0..records).for_each(|n| store.put(n));
    store.settle();
    let mut shuffle = Shuffle(3);
    let (mut puts, mut gets) = (OperationTimes::new(), OperationTimes::new());
    for _ in 0..records {
        let (written, read) = (shuffle.next(records), shuffle.next(records));
        puts.time(|| store.put(written));
        gets.time(|| store.get(read));
    }
    let quiet = [puts.print("quiet, puts in place"), gets.print("quiet, gets")];
    let mut from = records;
    for _ in 0..2 {
        let (mut puts, mut gets) = (OperationTimes::new(), OperationTimes::new());
        let (mut moving_puts, mut moving_gets) = (OperationTimes::new(), OperationTimes::new());
        for n in from..2 * from {
            let moving = store.is_growing();
            let (puts, gets) = if moving { (&mut moving_puts, &mut moving_gets) } else { (&mut puts, &mut gets) };
            let read = shuffle.next(n);
            puts.time(|| store.put(n));
            gets.time(|| store.get(read));
        }
        println!("  from {from} to {} records:", 2 * from);
        let still = [puts.print("new puts, nothing moves"), gets.print("gets, nothing moves")];
        let moving = [moving_puts.print("new puts while records move"), moving_gets.print("gets while records move")];
        for (kind, name) in ["puts", "gets"].iter().enumerate() {
            let ratio = moving[kind][0] / quiet[kind][0];
            let verdict = if ratio < 5.0 { "reached" } else { "not reached" };
            // The table is larger and the records are new: the still phase shows what part of it is not caused by the
            // moving.
            let beside = moving[kind][0] / still[kind][0];
            println!(
                "  {name}: p99.9 while records move is {ratio:.2} times the quiet one; target under 5: {verdict}; {beside:.2} times what it is \
                 between two growths"
            );
        }
        from *= 2;
    }
}
