//! Measures the distance between the two cores that both sides run on; shared memory cannot be faster than that. The
//! host of a virtual machine moves its cores between real ones, from one cache to two, within seconds.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::Instant;

use sandstorm_server::cpu_affinity;

/// Round trips of one reading, and number of readings.
const TRIPS: u32 = 100;
const READINGS: u32 = 200;

/// Words on cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct CacheLineWord(AtomicU32);

impl CacheLineWord {
    /// Waits until this number is stored here. The wait includes the time that the other thread has no core.
    fn spin_until(&self, number: u32) {
        while self.0.load(Acquire) != number {
            std::hint::spin_loop();
        }
    }
}

/// Median nanoseconds that a word takes from this thread's core to the workers' first core and back. `None` if there is
/// no other core.
pub(super) fn round_trip_ns() -> Option<f64> {
    cpu_affinity::worker_free_cpus(1).first()?;
    let [there, back] = [CacheLineWord::default(), CacheLineWord::default()];
    let mut readings_ns: Vec<f64> = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let _stays_where_it_was = cpu_affinity::bind_worker(0);
            for number in 1..=TRIPS * READINGS {
                there.spin_until(number);
                back.0.store(number, Release);
            }
        });
        let mut number = 0;
        for _ in 0..READINGS {
            let begun = Instant::now();
            for _ in 0..TRIPS {
                number += 1;
                there.0.store(number, Release);
                back.spin_until(number);
            }
            readings_ns.push(begun.elapsed().as_nanos() as f64 / f64::from(TRIPS));
        }
    });
    readings_ns.sort_unstable_by(f64::total_cmp);
    readings_ns.get(readings_ns.len() / 2).copied()
}

/// Describes the readings of a run.
pub(super) fn describe_readings(readings_ns: &[Option<f64>]) -> Option<String> {
    let read: Vec<String> = readings_ns.iter().flatten().map(|ns| format!("{ns:.0}")).collect();
    (!read.is_empty()).then(|| {
        let read = read.join(", ");
        format!("A word takes {read} ns from one of the two cores to the other and back, before, between and after the tables: over memif a request and its answer take several such trips.")
    })
}
