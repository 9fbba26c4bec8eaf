//! The machine's own activity during a measurement: the delay with which it woke an idle thread, and the processor time
//! that other programs and the hypervisor took. Where these are not small, a latency depends on the machine as much as
//! on the server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time that the idle thread sleeps between two samples.
const NAP: Duration = Duration::from_millis(1);
/// The unit of processor time in `/proc/stat`: hundredths of a second.
const TICK_S: f64 = 0.01;

/// The machine's activity during a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct MachineActivity {
    /// Wake-up delay of the idle thread, microseconds: 99th percentile.
    pub(super) late_p99_us: f64,
    /// The longest delay.
    pub(super) late_max_us: f64,
    /// Processors that other programs used, on average.
    pub(super) others: f64,
    /// Processors that the hypervisor gave to other machines although this one needed them.
    pub(super) stolen: f64,
    /// Number of processors.
    pub(super) processors: usize,
}

/// Does the work, and returns the machine's activity meanwhile.
pub(super) fn observe_machine<T>(work: impl FnOnce() -> T) -> (T, MachineActivity) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| measure_wakeup_delay(&done));
        let (begun, before) = (Instant::now(), CpuTimes::now());
        let worked = work();
        let (seconds, after) = (begun.elapsed().as_secs_f64(), CpuTimes::now());
        done.store(true, Ordering::Relaxed);
        let late = sleeper.join().unwrap_or_default();
        (worked, machine(&late, &before, &after, seconds))
    })
}

/// Measures the wake-up delays of a sleeping thread, in microseconds.
fn measure_wakeup_delay(done: &AtomicBool) -> Vec<f64> {
    let mut late = Vec::new();
    while !done.load(Ordering::Relaxed) {
        let begun = Instant::now();
        std::thread::sleep(NAP);
        late.push(begun.elapsed().saturating_sub(NAP).as_secs_f64() * 1e6);
    }
    late
}

/// Processor time in seconds so far, of all processors together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct CpuTimes {
    busy: f64,
    stolen: f64,
    own: f64,
    processors: usize,
}

impl CpuTimes {
    fn now() -> CpuTimes {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let own = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        CpuTimes::of(&stat, &own)
    }

    /// Parses `/proc/stat` and `/proc/self/stat`; zero where their format is unknown.
    fn of(stat: &str, own: &str) -> CpuTimes {
        let ticks = |word: Option<&str>| word.and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0) * TICK_S;
        let all: Vec<&str> = stat.lines().next().unwrap_or_default().split_whitespace().skip(1).collect();
        let at = |index: usize| ticks(all.get(index).copied());
        // user, nice, system; then idle and I/O wait, which no program uses; interrupts, and stolen time.
        let (busy, stolen) = (at(0) + at(1) + at(2) + at(5) + at(6), at(7));
        let is_processor =
            |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let processors = stat.lines().filter(is_processor).count();
        // The name, in brackets, may contain blanks.
        let own: Vec<&str> = own.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        let own = ticks(own.get(11).copied()) + ticks(own.get(12).copied());
        CpuTimes { busy, stolen, own, processors }
    }
}

fn machine(late: &[f64], before: &CpuTimes, after: &CpuTimes, seconds: f64) -> MachineActivity {
    let mut late = late.to_vec();
    late.sort_by(f64::total_cmp);
    let share = |of: fn(&CpuTimes) -> f64| ((of(after) - of(before)) / seconds.max(TICK_S)).max(0.0);
    MachineActivity {
        late_p99_us: late.get(late.len() * 99 / 100).or(late.last()).copied().unwrap_or(0.0),
        late_max_us: late.last().copied().unwrap_or(0.0),
        others: share(|times| times.busy - times.own),
        stolen: share(|times| times.stolen),
        processors: after.processors,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_as_the_kernel_writes_it() {
        let stat = "cpu  100 200 300 9999 50 10 20 40 0 0\ncpu0 1 2 3 4\ncpu1 1 2 3 4\nintr 1 2\n";
        let own = "77 (a name) with) S 1 1 1 0 -1 0 0 0 0 0 150 250 7 8 20 0";
        let read = CpuTimes::of(stat, own);
        let expected = CpuTimes { busy: 6.3, stolen: 0.4, own: 4.0, processors: 2 };
        let close = |left: f64, right: f64| (left - right).abs() < 1e-9;
        assert!(
            close(read.busy, expected.busy) && close(read.stolen, expected.stolen) && close(read.own, expected.own)
        );
        assert_eq!((read.processors, CpuTimes::of("", "")), (2, CpuTimes::default()));
    }

    #[test]
    fn what_others_took_is_what_was_busy_without_this_process() {
        let before = CpuTimes { busy: 10.0, stolen: 1.0, own: 4.0, processors: 4 };
        let after = CpuTimes { busy: 16.0, stolen: 1.5, own: 8.0, processors: 4 };
        let late: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let found = machine(&late, &before, &after, 2.0);
        let expected =
            MachineActivity { late_p99_us: 199.0, late_max_us: 200.0, others: 1.0, stolen: 0.25, processors: 4 };
        assert_eq!(found, expected);
        assert_eq!(
            machine(&[], &before, &before, 0.0),
            MachineActivity { processors: 4, ..MachineActivity::default() }
        );
    }
}
