//! What the desk of a server has to do with plans that level loads: whom to ask, what would be moved, how it begins.

use std::collections::BTreeMap;

use crate::map_requests::MapRequest;
use crate::move_desk::MoveDesk;
use crate::slot_balance::{BalanceAim, BalancePlan, ServerLoadReport};
use crate::slot_plans::{KnownServers, PlannedMove};

impl MoveDesk {
    /// What would level the servers, as each of those that live has told of its load.
    ///
    /// # Errors
    /// One line.
    pub fn plan_balance(
        &self,
        reports: &BTreeMap<String, ServerLoadReport>,
        aim: BalanceAim,
    ) -> Result<BalancePlan, String> {
        // The plan takes its time, and the desk is on the way of each look at the map.
        let (map, servers, live) = self.known_now();
        map.balance(KnownServers { all: &servers, live: &live }, reports, aim)
    }

    /// Begins the moves of a plan; returns how many.
    ///
    /// # Errors
    /// One line: slots are not where they were when it was made, for one.
    pub fn begin_balance(&self, moves: &[PlannedMove], mib_per_s: u64) -> Result<usize, String> {
        self.change(&MapRequest::Planned(moves.to_vec(), mib_per_s))
    }
}
