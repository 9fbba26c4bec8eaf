//! A tenant's extension, its budget and what is counted of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use super::Library;
use crate::limits::{ARENA_BYTES, REPLY_BYTES, SLICE_US, TOTAL_US};

/// What one invocation may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// CPU time of one poll, microseconds: between two yields.
    pub slice_us: u64,
    /// CPU time of the whole invocation, microseconds.
    pub total_us: u64,
    /// Memory of the invocation, bytes: arguments, future and whatever it allocates.
    pub memory_bytes: usize,
    /// Length of the reply, bytes.
    pub reply_bytes: usize,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { slice_us: SLICE_US, total_us: TOTAL_US, memory_bytes: ARENA_BYTES, reply_bytes: REPLY_BYTES }
    }
}

impl Budget {
    /// This budget with what the override says instead.
    pub fn with(self, other: &BudgetOverride) -> Budget {
        Budget {
            slice_us: other.slice_us.unwrap_or(self.slice_us),
            total_us: other.total_us.unwrap_or(self.total_us),
            memory_bytes: other.memory_bytes.unwrap_or(self.memory_bytes),
            reply_bytes: other.reply_bytes.unwrap_or(self.reply_bytes),
        }
    }
}

/// What an extension's budget says instead of its tenant's; `None`: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetOverride {
    /// See [`Budget::slice_us`].
    pub slice_us: Option<u64>,
    /// See [`Budget::total_us`].
    pub total_us: Option<u64>,
    /// See [`Budget::memory_bytes`].
    pub memory_bytes: Option<usize>,
    /// See [`Budget::reply_bytes`].
    pub reply_bytes: Option<usize>,
}

/// One loaded version of a tenant's extension.
#[derive(Debug)]
pub struct Extension {
    /// Its name.
    pub name: Box<str>,
    /// Its version, which grows with every push.
    pub version: u64,
    /// Its code.
    pub library: Arc<Library>,
    /// Its own budget where it differs from its tenant's.
    pub budget: BudgetOverride,
    /// What was counted of it.
    pub stats: ExtensionStats,
}

impl Extension {
    /// A version of an extension that has not run yet.
    pub fn new(name: impl Into<Box<str>>, version: u64, library: Arc<Library>, budget: BudgetOverride) -> Extension {
        Extension { name: name.into(), version, library, budget, stats: ExtensionStats::default() }
    }
}

/// Why the server ended an invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum KillCause {
    /// One poll took more CPU time than a slice: it did not yield.
    SliceBudget = 0,
    /// All its polls together took more CPU time than the total.
    TotalBudget = 1,
    /// It panicked.
    Panic = 2,
    /// Its memory quota is used up.
    OutOfMemory = 3,
    /// Its stack is used up.
    StackOverflow = 4,
    /// It executed an instruction that does not exist, or an abort.
    IllegalInstruction = 5,
    /// The processor met a division by zero (or one that overflows).
    DivisionByZero = 6,
    /// It touched memory that is not mapped for it.
    MemoryFault = 7,
}

impl KillCause {
    /// Every cause, in the order of their numbers.
    pub const ALL: [KillCause; 8] = [
        KillCause::SliceBudget,
        KillCause::TotalBudget,
        KillCause::Panic,
        KillCause::OutOfMemory,
        KillCause::StackOverflow,
        KillCause::IllegalInstruction,
        KillCause::DivisionByZero,
        KillCause::MemoryFault,
    ];

    /// A short name, as statistics and the control interface show it.
    pub fn name(self) -> &'static str {
        match self {
            KillCause::SliceBudget => "slice_budget",
            KillCause::TotalBudget => "total_budget",
            KillCause::Panic => "panic",
            KillCause::OutOfMemory => "out_of_memory",
            KillCause::StackOverflow => "stack_overflow",
            KillCause::IllegalInstruction => "illegal_instruction",
            KillCause::DivisionByZero => "division_by_zero",
            KillCause::MemoryFault => "memory_fault",
        }
    }

    /// What the caller is told where the extension left no text of its own.
    pub fn text(self) -> &'static str {
        match self {
            KillCause::SliceBudget => "ended: it computed past its CPU budget between two yields",
            KillCause::TotalBudget => "ended: it computed past its CPU budget in total",
            KillCause::Panic => "ended: it panicked",
            KillCause::OutOfMemory => "ended: its memory quota is used up",
            KillCause::StackOverflow => "ended: its stack is used up",
            KillCause::IllegalInstruction => "ended: it executed an illegal instruction",
            KillCause::DivisionByZero => "ended: the processor met a division by zero",
            KillCause::MemoryFault => "ended: it touched memory that is not its own",
        }
    }
}

impl std::fmt::Display for KillCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Stripes of an extension's counters, so that workers do not share a cache line; more workers than stripes share some.
const STRIPES: usize = 16;

#[derive(Debug, Default)]
struct Stripe {
    begun: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
    cpu_ns: AtomicU64,
    killed: [AtomicU64; KillCause::ALL.len()],
    abandoned: AtomicU64,
}

/// Counters of one extension, written by the workers without contention.
#[derive(Debug, Default)]
pub struct ExtensionStats {
    stripes: Box<[CachePadded<Stripe>; STRIPES]>,
}

/// A reading of [`ExtensionStats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtensionCounts {
    /// Invocations begun.
    pub invocations: u64,
    /// Of them, those that returned `Ok(())`.
    pub ok: u64,
    /// Of them, those that returned an error.
    pub failed: u64,
    /// Of them, those that the server ended, by the number of their [`KillCause`].
    pub killed: [u64; KillCause::ALL.len()],
    /// Of them, those that were given up while they were pending.
    pub abandoned: u64,
    /// CPU time that ended invocations took, microseconds.
    pub cpu_us: u64,
}

impl ExtensionCounts {
    /// Invocations under way.
    pub fn live(&self) -> u64 {
        self.invocations.saturating_sub(self.ok + self.failed + self.abandoned + self.killed_total())
    }

    /// Invocations that the server ended, whatever the cause.
    pub fn killed_total(&self) -> u64 {
        self.killed.iter().sum()
    }
}

/// How an invocation ended, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Failed,
    Killed(KillCause),
    /// Given up by the server while it was pending.
    Abandoned,
}

impl ExtensionStats {
    /// Adds all stripes up. Counters that move meanwhile are seen or not, each by itself.
    pub fn read(&self) -> ExtensionCounts {
        let mut sum = ExtensionCounts::default();
        let mut cpu_ns = 0;
        for stripe in self.stripes.iter() {
            sum.invocations += stripe.begun.load(Ordering::Relaxed);
            sum.ok += stripe.done.load(Ordering::Relaxed);
            sum.failed += stripe.failed.load(Ordering::Relaxed);
            sum.abandoned += stripe.abandoned.load(Ordering::Relaxed);
            cpu_ns += stripe.cpu_ns.load(Ordering::Relaxed);
            for (total, killed) in sum.killed.iter_mut().zip(&stripe.killed) {
                *total += killed.load(Ordering::Relaxed);
            }
        }
        sum.cpu_us = cpu_ns / 1000;
        sum
    }

    fn stripe(&self, worker: usize) -> &Stripe {
        &self.stripes[worker % STRIPES]
    }

    pub(super) fn begun(&self, worker: usize) {
        self.stripe(worker).begun.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn ended(&self, worker: usize, outcome: Outcome, cpu_ns: u64) {
        let stripe = self.stripe(worker);
        stripe.cpu_ns.fetch_add(cpu_ns, Ordering::Relaxed);
        match outcome {
            Outcome::Done => stripe.done.fetch_add(1, Ordering::Relaxed),
            Outcome::Failed => stripe.failed.fetch_add(1, Ordering::Relaxed),
            Outcome::Killed(cause) => stripe.killed[cause as usize].fetch_add(1, Ordering::Relaxed),
            Outcome::Abandoned => stripe.abandoned.fetch_add(1, Ordering::Relaxed),
        };
    }
}
