//! What a server's coordinator does with plans that level loads: which servers it asks, what a plan would move, how one
//! begins.

use std::collections::BTreeMap;

use crate::map_requests::MapRequest;
use crate::move_coordinator::MoveCoordinator;
use crate::slot_balance::{BalancePlan, ServerLoadReport};
use crate::slot_plans::{KnownServers, PlannedMove};
use crate::slot_split::SplitPlan;
use crate::state::ServerState;

impl MoveCoordinator {
    /// What would level the servers, as each of those that live has told of its load: none is over `within` above the
    /// mean then, as a part of it.
    ///
    /// # Errors
    /// One line.
    pub fn plan_balance(
        &self,
        reports: &BTreeMap<String, ServerLoadReport>,
        within: f64,
    ) -> Result<BalancePlan, String> {
        // The plan takes its time, and the coordinator is on the way of each look at the map.
        let (map, servers, live, _) = self.read_last();
        map.balance(KnownServers { all: &servers, live: &live }, reports, within)
    }

    /// Refuses to split a server where that cannot be, whatever its slots take.
    ///
    /// # Errors
    /// One line.
    pub fn check_split(&self, (source, target): (&str, &str)) -> Result<(), String> {
        let (map, servers, live, _) = self.read_last();
        map.divisible(KnownServers { all: &servers, live: &live }, source, target).map(drop)
    }

    /// What would split a server, which has told of its slots, so that about half goes to another one.
    ///
    /// # Errors
    /// One line.
    pub fn plan_split(&self, (source, target): (&str, &str), report: &ServerLoadReport) -> Result<SplitPlan, String> {
        let (map, servers, live, _) = self.read_last();
        map.split(KnownServers { all: &servers, live: &live }, (source, target), report)
    }

    /// The other servers that live, and the key with which they believe this one.
    pub(crate) fn live_others(&self) -> (Vec<(String, ServerState)>, String) {
        let (_, mut servers, live, key) = self.read_last();
        servers.retain(|id, _| live.contains(id) && id != self.slots().own_id());
        (servers.into_iter().collect(), key)
    }

    /// Begins the moves of a plan; returns how many.
    ///
    /// # Errors
    /// One line: slots are not where they were when it was made, for one.
    pub fn begin_balance(&self, moves: &[PlannedMove], mib_per_s: u64) -> Result<usize, String> {
        self.change(&MapRequest::Planned(moves.to_vec(), mib_per_s))
    }
}
