//! Which tenants get room for good where there is none left for more of them.
//!
//! Where more tenants take turns than there is room for, the rule of most caches, that what has waited longest goes,
//! lets none of them find its own again, and what it gives them is in none of the processor's caches. So most of those
//! that come anew hand a few on among each other, which are in the caches, and the others keep theirs. One in so many
//! gets room for good, in place of what has waited longest: else those that came first would hold it for ever. (As
//! caches of processors that put most new lines where they go first: bimodal insertion, Qureshi and others, ISCA 2007.)

use crate::limits::NEWCOMERS_PER_RESIDENT;

/// Counts the tenants that come anew where there is no room left.
#[derive(Debug, Default)]
pub(super) struct Newcomers(u32);

impl Newcomers {
    /// Counts one; returns whether it gets room for good.
    pub(super) fn next_stays(&mut self) -> bool {
        self.0 = (self.0 + 1) % NEWCOMERS_PER_RESIDENT;
        self.0 == 0
    }
}
