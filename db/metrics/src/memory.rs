//! The memory of the process: the kernel's counts, and their parts.
//!
//! This module guarantees: it asks the system's allocator for its state, and touches no other memory.
#![allow(unsafe_code)]

use super::{MetricReading, MetricSpec, gauge, readings};
use sandstorm_store::{bucket_array_bytes, slab_free_bytes};

/// Gauges of the process's memory, in the order of [`memory_readings`]. With `slab_bytes` they add up to nearly the
/// resident memory. The rest is code, stacks, and the untouched part of `bucket_bytes`.
pub const MEMORY_METRICS: &[MetricSpec] = &[
    gauge(
        "resident_bytes",
        "Bytes of the server's process that are in memory, as the kernel counts them; 0 where it does not tell.",
    ),
    gauge(
        "slab_free_bytes",
        "Of `slab_bytes`, those that no record has: room between records, and some for the next ones. What is more than that goes back within a second or two.",
    ),
    gauge("bucket_bytes", "Bytes of the tables' bucket arrays of 1 MiB and more; smaller ones are in `heap_bytes`."),
    gauge(
        "heap_bytes",
        "Bytes that the system's allocator has of the kernel, for all but records and large bucket arrays: messages, connections, indexes of ordered tables.",
    ),
    gauge("heap_free_bytes", "Of `heap_bytes`, those that are free."),
];

/// The readings of [`MEMORY_METRICS`].
pub fn memory_readings() -> Vec<MetricReading> {
    let (heap, free) = heap_bytes();
    let values = [resident_bytes().unwrap_or(0), slab_free_bytes() as u64, bucket_array_bytes() as u64, heap, free];
    readings(MEMORY_METRICS, values.into_iter().map(|value| vec![value]).collect())
}

/// The page size of x86-64, in which the kernel counts.
const PAGE_BYTES: u64 = 4096;

fn resident_bytes() -> Option<u64> {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    Some(pages * PAGE_BYTES)
}

/// Bytes that the allocator has from the kernel, and those of them that are free.
#[cfg(all(target_env = "gnu", not(miri)))]
fn heap_bytes() -> (u64, u64) {
    // SAFETY: it takes no argument, locks the allocator's arenas one by one, and answers by value.
    let info = unsafe { libc::mallinfo2() };
    ((info.arena + info.hblkhd) as u64, info.fordblks as u64)
}

#[cfg(not(all(target_env = "gnu", not(miri))))]
fn heap_bytes() -> (u64, u64) {
    (0, 0)
}
