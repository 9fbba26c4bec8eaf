//! Plans that level what servers have to do: which slots go from busy servers to those with room, by what each slot
//! takes of a server's workers and of its memory.
//!
//! A server has two loads: the part of its workers' time that its slots take, and the part of its memory. Both are
//! compared with the mean of all servers. A plan begins with the owners as they will be once all moves that are under
//! way have ended, and adds one move after the other: always the one that brings the servers nearest to the mean for
//! the bytes that it copies. It ends when all servers are near enough, or no move helps. So a plan for a cluster that
//! is level is empty, whatever is under way, and a plan of the same loads twice moves nothing the second time.
//!
//! A slot is never divided: one that alone takes more than a server should have is named in the plan, and stays where
//! it disturbs least.

use std::collections::BTreeMap;

use sandstorm_net::slots::SLOTS;
use sandstorm_store::slots::SlotSpan;
use serde::{Deserialize, Serialize};

use crate::limits::{BALANCE_FLOORS, BALANCE_MOVES, BALANCE_RANGES};
use crate::slot_plans::{KnownServers, PlannedMove, new_move};
use crate::state::StoredSlots;

/// What a server tells the planning server of its slots.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerLoadReport {
    /// Workers of the server.
    pub workers: u32,
    /// Workers that were busy, on average: from 0 to their number.
    pub busy_workers: f64,
    /// Bytes of memory that the server may use.
    pub memory_limit_bytes: u64,
    /// The slots that have accesses or records.
    pub slots: Vec<SlotLoad>,
    /// The tenant whose tables alone were looked at. A server of an earlier version looks at all, and
    /// does not say this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<u32>,
}

/// What a slot takes of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SlotLoad {
    /// The slot.
    pub slot: u16,
    /// Accesses of its keys a second.
    pub accesses_per_s: f64,
    /// Bytes of memory of its records.
    pub bytes: u64,
}

/// What a server has to do, as parts of what it can.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerBalance {
    /// Its id.
    pub server: String,
    /// The part of its workers' time that is taken: 0 to 1, or more where a plan gives it too much.
    pub cpu: f64,
    /// The part of its memory that its records take.
    pub memory: f64,
    /// Bytes of its records.
    pub memory_bytes: u64,
    /// The slot that takes most of its workers' time, with that part of it.
    pub hottest: Option<(u16, f64)>,
}

/// What would level the servers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BalancePlan {
    /// The moves.
    pub moves: Vec<PlannedMove>,
    /// Bytes that they copy.
    pub bytes: u64,
    /// The servers once all moves under way have ended.
    pub before: Vec<ServerBalance>,
    /// The same after the plan's moves.
    pub after: Vec<ServerBalance>,
    /// Why it does not do more, in sentences.
    pub remarks: Vec<String>,
}

/// A server while a plan is made: its capacities, and what its slots take of them.
#[derive(Clone, Debug)]
struct PlannedServer {
    id: String,
    /// Workers; bytes.
    capacity: [f64; 2],
    /// Busy workers; bytes of memory.
    used: [f64; 2],
    /// Whether it lives and keeps its slots: others are left as they are.
    is_planned: bool,
}

impl PlannedServer {
    fn part(&self, of: usize) -> f64 {
        self.used[of] / self.capacity[of]
    }
}

/// A move that may be the next one.
#[derive(Clone, Copy, Debug)]
struct CandidateMove {
    span: SlotSpan,
    source: usize,
    target: usize,
    /// How much nearer the servers come to the mean, for what it costs.
    worth: f64,
}

/// See the head of this file.
struct BalancePlanner {
    /// Busy workers and bytes of all slots before each slot: what a span takes along is a difference.
    sums: Vec<[f64; 2]>,
    servers: Vec<PlannedServer>,
    map: StoredSlots,
    /// How far above the mean a server may be, as a part of it: 0.1 is a tenth.
    within: f64,
    all_bytes: f64,
}

/// Busy workers, and bytes.
const RESOURCES: [usize; 2] = [0, 1];

impl BalancePlanner {
    fn new(
        map: &StoredSlots,
        known: KnownServers<'_>,
        reports: &BTreeMap<String, ServerLoadReport>,
        within: f64,
    ) -> BalancePlanner {
        let mut slots = vec![[0.0; 2]; usize::from(SLOTS)];
        for (id, report) in reports {
            let accesses: f64 = report.slots.iter().map(|one| one.accesses_per_s).sum();
            for one in &report.slots {
                let Some(slot) = slots.get_mut(usize::from(one.slot)).filter(|_| map.owns(id, one.slot)) else {
                    // Of a slot that has just left; or what waits to be removed.
                    continue;
                };
                let part = if accesses > 0.0 { one.accesses_per_s / accesses } else { 0.0 };
                *slot = [report.busy_workers * part, one.bytes as f64];
            }
        }
        let mut sums = vec![[0.0; 2]];
        for slot in &slots {
            let last = sums[sums.len() - 1];
            sums.push([last[0] + slot[0], last[1] + slot[1]]);
        }
        let takers = known.takers(map, "");
        let after = map.after_moves();
        let servers = reports.iter().map(|(id, report)| {
            let is_planned = takers.contains(id);
            let used = after.spans_of(id).map(|span| span_sum(&sums, span)).fold([0.0; 2], add);
            let capacity = [f64::from(report.workers), report.memory_limit_bytes as f64];
            // What has told no capacity has nothing that could be too full.
            let capacity = capacity.map(|number| if number > 0.0 { number } else { f64::INFINITY });
            PlannedServer { id: id.clone(), capacity, used, is_planned }
        });
        let servers = servers.collect();
        let all_bytes = sums[sums.len() - 1][1];
        BalancePlanner { sums, servers, map: map.clone(), within, all_bytes }
    }

    /// The mean part of a resource that servers have taken, weighed by their capacities.
    fn mean(&self, of: usize) -> f64 {
        let sum = |number: fn(&PlannedServer, usize) -> f64| {
            self.servers.iter().filter(|server| server.is_planned).map(|server| number(server, of)).sum::<f64>()
        };
        let capacity = sum(|server, of| server.capacity[of]);
        if capacity > 0.0 { sum(|server, of| server.used[of]) / capacity } else { 0.0 }
    }

    /// How far a server is from the mean, as a part of that; a cluster that has nearly nothing to do is level.
    fn off(&self, server: &PlannedServer, of: usize, mean: f64) -> f64 {
        (server.part(of) - mean) / mean.max(BALANCE_FLOORS[of])
    }

    /// The server that has most of a resource above the mean, if it has too much and is not done.
    fn worst(&self, is_done: &[bool]) -> Option<usize> {
        let mut worst: Option<(f64, usize)> = None;
        for of in RESOURCES {
            let mean = self.mean(of);
            let is_asked = |(place, server): &(usize, &PlannedServer)| server.is_planned && !is_done[*place];
            for (place, server) in self.servers.iter().enumerate().filter(is_asked) {
                let off = self.off(server, of, mean);
                if off > self.within && worst.is_none_or(|(other, _)| off > other) {
                    worst = Some((off, place));
                }
            }
        }
        worst.map(|(_, place)| place)
    }

    /// The sum of the squares by which two servers are off, with `load` at one or the other.
    fn tension(&self, source: usize, target: usize, load: [f64; 2], means: [f64; 2]) -> f64 {
        let mut sum = 0.0;
        for of in RESOURCES {
            let scale = means[of].max(BALANCE_FLOORS[of]);
            for (place, sign) in [(source, -1.0), (target, 1.0)] {
                let server = &self.servers[place];
                let part = (server.used[of] + sign * load[of]) / server.capacity[of];
                sum += ((part - means[of]) / scale).powi(2);
            }
        }
        sum
    }

    /// The best move of slots away from a server.
    fn best_from(&self, source: usize) -> Option<CandidateMove> {
        let means = [self.mean(0), self.mean(1)];
        let targets: Vec<usize> =
            (0..self.servers.len()).filter(|place| *place != source && self.servers[*place].is_planned).collect();
        let mut best: Option<CandidateMove> = None;
        let mut consider = |span: SlotSpan, new_ranges: f64| {
            let load = span_sum(&self.sums, span);
            if load == [0.0; 2] {
                return;
            }
            for target in &targets {
                let now = self.tension(source, *target, [0.0; 2], means);
                let gain = now - self.tension(source, *target, load, means);
                let bytes = load[1] / self.all_bytes.max(1.0);
                let worth = gain / (MOVE_COST + RANGE_COST * new_ranges + bytes);
                if gain > LEAST_GAIN && best.is_none_or(|other| worth > other.worth) {
                    best = Some(CandidateMove { span, source, target: *target, worth });
                }
            }
        };
        for span in self.map.free_spans(&self.servers[source].id) {
            let len = u32::from(span.last - span.first) + 1;
            let mut size = 1;
            while size <= len {
                // Windows that overlap by half; the last one ends with the span.
                let step = (size / 2).max(1);
                let mut from = 0;
                loop {
                    let first = span.first + from.min(len - size) as u16;
                    let window = SlotSpan { first, last: first + (size - 1) as u16 };
                    let inner = [window.first != span.first, window.last != span.last];
                    consider(window, inner.into_iter().filter(|is_inner| *is_inner).count() as f64);
                    if from >= len - size {
                        break;
                    }
                    from += step;
                }
                size *= 2;
            }
        }
        best
    }

    fn take(&mut self, one: CandidateMove) -> PlannedMove {
        let load = span_sum(&self.sums, one.span);
        for of in RESOURCES {
            self.servers[one.source].used[of] -= load[of];
            self.servers[one.target].used[of] += load[of];
        }
        let (source, target) = (self.servers[one.source].id.clone(), self.servers[one.target].id.clone());
        // From here on it is no span that may be taken.
        self.map.moves.push(new_move(one.span, &source, &target, 0, 0));
        PlannedMove { span: one.span, source, target }
    }

    fn shown(&self) -> Vec<ServerBalance> {
        let after = self.map.after_moves();
        let shown = |server: &PlannedServer| {
            let slots = after.spans_of(&server.id).flat_map(|span| span.first..=span.last);
            let parts = slots.map(|slot| {
                let span = SlotSpan { first: slot, last: slot };
                (slot, span_sum(&self.sums, span)[0] / server.capacity[0])
            });
            let hottest = parts.max_by(|(_, one), (_, other)| one.total_cmp(other));
            ServerBalance {
                server: server.id.clone(),
                cpu: server.part(0).max(0.0),
                memory: server.part(1).max(0.0),
                memory_bytes: server.used[1].max(0.0) as u64,
                hottest: hottest.filter(|(_, part)| *part > 0.0),
            }
        };
        self.servers.iter().map(shown).collect()
    }

    fn plan(mut self) -> BalancePlan {
        let mut plan = BalancePlan { before: self.shown(), ..BalancePlan::default() };
        let mut is_done = vec![false; self.servers.len()];
        // Some moves go on where others end, and are parts of them.
        for _ in 0..4 * BALANCE_MOVES {
            let wanted = self.worst(&is_done).filter(|_| plan.moves.len() < BALANCE_MOVES);
            let Some(source) = wanted else { break };
            match self.best_from(source) {
                Some(one) => {
                    plan.bytes += span_sum(&self.sums, one.span)[1] as u64;
                    let planned = self.take(one);
                    join(&mut plan.moves, planned);
                }
                None => is_done[source] = true,
            }
        }
        plan.after = self.shown();
        plan.remarks = self.remarks(&is_done, plan.moves.len());
        plan
    }

    fn remarks(&self, is_done: &[bool], moves: usize) -> Vec<String> {
        let mut remarks = Vec::new();
        for (server, _) in self.servers.iter().zip(is_done).filter(|(_, is_done)| **is_done) {
            let short = server.id.get(..8).unwrap_or(&server.id);
            for (of, name) in [(0, "workers' time"), (1, "memory")] {
                let mean = self.mean(of);
                if self.off(server, of, mean) <= self.within {
                    continue;
                }
                remarks.push(format!(
                    "server {short} keeps {:.0} % of its {name}, and the mean is {:.0} %: no move of its slots would \
                     bring the servers nearer to the mean",
                    server.part(of) * 100.0,
                    mean * 100.0
                ));
            }
        }
        if moves >= BALANCE_MOVES {
            remarks.push(format!("a plan has at most {BALANCE_MOVES} moves: ask again once they have ended"));
        }
        remarks
    }
}

/// What a move costs besides its bytes, as a part of all bytes: few large moves are better than many small ones.
const MOVE_COST: f64 = 0.01;
/// The same for each range of slots that it divides: the map of all ranges is read by all clients.
const RANGE_COST: f64 = 0.002;
/// Less than this is no gain: a hundredth of the mean, squared.
const LEAST_GAIN: f64 = 1e-4;

fn add(one: [f64; 2], other: [f64; 2]) -> [f64; 2] {
    [one[0] + other[0], one[1] + other[1]]
}

fn span_sum(sums: &[[f64; 2]], span: SlotSpan) -> [f64; 2] {
    let (from, to) = (sums[usize::from(span.first)], sums[usize::from(span.last) + 1]);
    // Differences of sums are never quite nothing.
    [to[0] - from[0], to[1] - from[1]].map(|number| if number.abs() < 1e-9 { 0.0 } else { number })
}

/// Adds a move; one that goes on where another of the same servers ends is a part of that.
fn join(moves: &mut Vec<PlannedMove>, planned: PlannedMove) {
    let is_beside = |one: &&mut PlannedMove| {
        one.source == planned.source
            && one.target == planned.target
            && (u32::from(one.span.last) + 1 == u32::from(planned.span.first)
                || u32::from(planned.span.last) + 1 == u32::from(one.span.first))
    };
    match moves.iter_mut().find(is_beside) {
        Some(one) => {
            let (first, last) = (one.span.first.min(planned.span.first), one.span.last.max(planned.span.last));
            one.span = SlotSpan { first, last };
        }
        None => moves.push(planned),
    }
}

impl StoredSlots {
    /// What would level the servers that live and keep their slots, as they have told of their loads: none is over
    /// `within` (0.1: a tenth) above the mean then.
    ///
    /// # Errors
    /// One line: another server takes the place of one, the map has too many ranges, or a server has not told.
    pub(crate) fn balance(
        &self,
        known: KnownServers<'_>,
        reports: &BTreeMap<String, ServerLoadReport>,
        within: f64,
    ) -> Result<BalancePlan, String> {
        self.check_succession()?;
        if self.ranges.len() > BALANCE_RANGES {
            return Err(format!(
                "the slots are divided into {} ranges, and {BALANCE_RANGES} are the most that are divided further: \
                 `sandstorm cluster move` brings ranges together",
                self.ranges.len()
            ));
        }
        if let Some(silent) = known.takers(self, "").iter().find(|id| !reports.contains_key(*id)) {
            return Err(format!("server {silent} has not told of its load"));
        }
        Ok(BalancePlanner::new(self, known, reports, within).plan())
    }

    /// With the moves of a plan that was made of an earlier map.
    ///
    /// # Errors
    /// One line: what it moves is not where it was, or a server cannot take it any more.
    pub(crate) fn begin_planned(
        &self,
        moves: &[PlannedMove],
        mib_per_s: u64,
        known: KnownServers<'_>,
        mut new_id: impl FnMut() -> u64,
    ) -> Result<(StoredSlots, usize), String> {
        self.check_succession()?;
        let takers = known.takers(self, "");
        let mut map = self.next_epoch();
        for PlannedMove { span, source, target } in moves {
            let changed = |what: String| format!("{what} since the plan was made: ask for a new one");
            if !takers.contains(target) {
                return Err(changed(format!("server {target} went silent, or began to be drained,")));
            }
            let is_free = |free: SlotSpan| free.first <= span.first && span.last <= free.last;
            if !map.free_spans(source).into_iter().any(is_free) {
                return Err(changed(format!(
                    "slots {}-{} have left server {source}, or are on their way,",
                    span.first, span.last
                )));
            }
            map.push_move(*span, source, target, mib_per_s, new_id());
        }
        Ok((map, moves.len()))
    }
}
