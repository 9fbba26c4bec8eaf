//! Facts about all operations of a message together, which decide whether it is admitted, and as how much it counts.

use sandstorm_dialects::limits::MULTIGET_KEYS;
use sandstorm_net::rpc::{COMMIT_STEPS, OpKind};

use crate::limits::POSITION_REQUESTS;

/// Facts about all operations of a message together.
#[derive(Default)]
pub(super) struct OperationSummary {
    /// Whether all operations may run twice without harm.
    pub(super) repeatable: bool,
    pub(super) invokes: bool,
    /// Whether all are pings: they need no tenant.
    pub(super) only_pings: bool,
    /// Whether the session presents a token.
    pub(super) hello: bool,
    /// Keys of all its multigets, and records that its ranges ask for.
    pub(super) keys: u64,
    /// Multigets and ranges.
    pub(super) multigets: u64,
    /// Steps of its commits, and the work of its counts, ranks and nths, beyond one request of each.
    pub(super) further_requests: u64,
}

impl OperationSummary {
    /// Looks at one more operation.
    #[inline]
    pub(super) fn note(&mut self, op: OpKind, number: u64) {
        if op == OpKind::MultiGet {
            self.keys = self.keys.saturating_add(number);
            self.multigets += 1;
        }
        if op == OpKind::Range {
            self.keys = self.keys.saturating_add(u64::from(number as u32).min(MULTIGET_KEYS));
            self.multigets += 1;
        }
        if op == OpKind::Commit {
            self.further_requests += number.clamp(1, COMMIT_STEPS as u64) - 1;
        }
        if op.is_of_positions() {
            self.further_requests += u64::from(POSITION_REQUESTS) - 1;
        }
        self.only_pings &= op == OpKind::Ping;
        self.invokes |= op == OpKind::Invoke;
        self.hello |= op == OpKind::Hello;
        self.repeatable &= op.only_reads();
    }

    /// The number of requests that a message of `operations` counts as. Each key of a multiget counts, each record that
    /// a range may answer, and each step of a commit; positions count as more than one.
    pub(super) fn requests(&self, operations: u16) -> u32 {
        let others = u64::from(operations).saturating_sub(self.multigets);
        let all = others + self.keys.max(self.multigets) + self.further_requests;
        u32::try_from(all).unwrap_or(u32::MAX)
    }
}
