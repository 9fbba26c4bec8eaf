//! Plans that halve a server's load: which of its slots go to another server, so that about half goes with them.
//!
//! A slot's load is measured by its accesses; where there are hardly any, by the memory of its records; where there are
//! none, slots count alike. A plan prefers few moves that divide few ranges. A slot is never divided: one with more
//! than half of the load stays, and of two parts that are as far from half, the smaller one goes.

use sandstorm_store::slots::SlotSpan;

use crate::limits::{BALANCE_MOVES, BALANCE_RANGES, SPLIT_ACCESSES_PER_S, SPLIT_LEAST_PART};
use crate::slot_balance::ServerLoadReport;
use crate::slot_plans::{KnownServers, PlannedMove, count};
use crate::state::StoredSlots;

/// By what slots are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitMeasure {
    /// Accesses of their keys.
    Accesses,
    /// Bytes of memory of their records.
    Bytes,
    /// Their number.
    Slots,
}

impl SplitMeasure {
    /// Its name, as programs see it.
    pub fn name(self) -> &'static str {
        match self {
            SplitMeasure::Accesses => "accesses",
            SplitMeasure::Bytes => "bytes",
            SplitMeasure::Slots => "slots",
        }
    }
}

/// What would split a server.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitPlan {
    /// The moves.
    pub moves: Vec<PlannedMove>,
    /// By what the slots were divided.
    pub measure: SplitMeasure,
    /// The part of that which goes: 0 to 1.
    pub part: f64,
    /// Slots that go.
    pub slots: usize,
    /// Bytes of memory of the records that are copied.
    pub bytes: u64,
    /// Why it is not half, in sentences.
    pub remarks: Vec<String>,
}

/// A part of a server's slots that may go.
#[derive(Clone, Debug, PartialEq)]
struct SlotPart {
    spans: Vec<SlotSpan>,
    weight: f64,
    /// How far it is from half, and what its moves cost besides.
    cost: f64,
}

/// What a move costs, as a part of what is divided: a move more has to bring that much more.
const MOVE_COST: f64 = 0.01;
/// The same for each range of slots that it divides: the map of all ranges is read by all clients.
const RANGE_COST: f64 = 0.005;
/// Parts that differ by less are as good.
const SAME_COST: f64 = 1e-9;

/// What each slot takes; sums of those before it.
struct SlotWeights {
    sums: Vec<f64>,
    all: f64,
    /// The slot that has more than half, if there is one: it stays, and what is beside it goes.
    stays: Option<u16>,
}

impl SlotWeights {
    fn of(slots: &[f64], free: &[SlotSpan]) -> SlotWeights {
        let mut sums = vec![0.0];
        for (slot, weight) in (0u16..).zip(slots) {
            let is_free = free.iter().any(|span| (span.first..=span.last).contains(&slot));
            sums.push(sums[sums.len() - 1] + if is_free { *weight } else { 0.0 });
        }
        let all = sums[sums.len() - 1];
        let stays = sums.windows(2).position(|pair| pair[1] - pair[0] > all / 2.0).map(|slot| slot as u16);
        SlotWeights { sums, all, stays }
    }

    fn span(&self, span: SlotSpan) -> f64 {
        self.sums[usize::from(span.last) + 1] - self.sums[usize::from(span.first)]
    }

    fn part(&self, spans: Vec<SlotSpan>, free: &[SlotSpan]) -> SlotPart {
        let weight: f64 = spans.iter().map(|span| self.span(*span)).sum();
        let inner = |span: &SlotSpan| {
            let whole = free.iter().find(|free| free.first <= span.first && span.last <= free.last);
            whole.map_or(0, |whole| usize::from(whole.first != span.first) + usize::from(whole.last != span.last))
        };
        let divided: usize = spans.iter().map(inner).sum();
        let off = (weight / self.all - 0.5).abs();
        let cost = off + MOVE_COST * spans.len() as f64 + RANGE_COST * divided as f64;
        SlotPart { spans, weight, cost }
    }

    /// The last slot of a span that begins there, so that it has as much as wanted or just more; `None`: up to the end
    /// of `within` there is less.
    fn reaches(&self, first: u16, within: SlotSpan, wanted: f64) -> Option<u16> {
        let sums = &self.sums[usize::from(first) + 1..=usize::from(within.last) + 1];
        let found = sums.partition_point(|sum| sum - self.sums[usize::from(first)] < wanted);
        (found < sums.len()).then(|| first + found as u16)
    }

    /// The heaviest spans that have no more than half together, and of which each is worth a move: where slots lie in
    /// many ranges, a plan has too few moves for all behind a slot.
    fn heaviest_spans(&self, free: &[SlotSpan]) -> Vec<SlotSpan> {
        let mut all = free.to_vec();
        all.retain(|span| self.span(*span) >= MOVE_COST * self.all);
        all.sort_by(|one, other| self.span(*other).total_cmp(&self.span(*one)).then(one.first.cmp(&other.first)));
        let (mut chosen, mut has) = (Vec::new(), 0.0);
        for span in all {
            let weight = self.span(span);
            if chosen.len() < BALANCE_MOVES && has + weight <= self.all / 2.0 {
                has += weight;
                chosen.push(span);
            }
        }
        chosen
    }

    /// The best part: a range within one of the spans, all behind a slot, or the heaviest spans.
    fn best(&self, free: &[SlotSpan]) -> Option<SlotPart> {
        let (half, slots) = (self.all / 2.0, count(free.iter().copied()));
        let mut best: Option<SlotPart> = None;
        let mut consider = |spans: Vec<SlotSpan>| {
            let many = count(spans.iter().copied());
            let is_allowed = !self.stays.is_some_and(|slot| spans.iter().any(|span| contains(*span, slot)));
            if many == 0 || many == slots || spans.len() > BALANCE_MOVES || !is_allowed {
                return;
            }
            let part = self.part(spans, free);
            if part.weight / self.all < SPLIT_LEAST_PART {
                return;
            }
            let is_better = best.as_ref().is_none_or(|best| {
                part.cost < best.cost - SAME_COST || (part.cost < best.cost + SAME_COST && part.weight < best.weight)
            });
            if is_better {
                best = Some(part);
            }
        };
        for span in free {
            for first in span.first..=span.last {
                let last = self.reaches(first, *span, half).unwrap_or(span.last);
                let lasts = [Some(last), last.checked_sub(1).filter(|last| *last >= first)];
                lasts.into_iter().flatten().for_each(|last| consider(vec![SlotSpan { first, last }]));
            }
        }
        // All behind the slot at which half is reached, from the end on.
        let mut behind: Vec<SlotSpan> = Vec::new();
        for span in free.iter().rev() {
            // No plan has more moves: it brings less than half then, and may be repeated.
            if behind.len() == BALANCE_MOVES {
                consider(behind.clone());
                break;
            }
            let has: f64 = behind.iter().map(|span| self.span(*span)).sum();
            if has + self.span(*span) >= half {
                for first in span.first..=span.last {
                    let cut = SlotSpan { first, last: span.last };
                    let is_near = has + self.span(cut) >= half;
                    let ends = first == span.last || has + self.span(SlotSpan { first: first + 1, ..cut }) < half;
                    if is_near && ends {
                        consider([&behind[..], &[cut]].concat());
                        if first < span.last {
                            consider([&behind[..], &[SlotSpan { first: first + 1, ..cut }]].concat());
                        }
                        break;
                    }
                }
                consider(behind.clone());
                break;
            }
            behind.push(*span);
        }
        consider(self.heaviest_spans(free));
        best
    }
}

impl StoredSlots {
    /// What would split a server, which has told of its slots: about half of what they take goes to another one.
    ///
    /// # Errors
    /// One line: the servers cannot give or take slots, or what is measured is in one slot.
    pub(crate) fn split(
        &self,
        known: KnownServers<'_>,
        (source, target): (&str, &str),
        report: &ServerLoadReport,
    ) -> Result<SplitPlan, String> {
        let free = self.divisible(known, source, target)?;
        let mut slots = vec![(0.0, 0.0); usize::from(sandstorm_net::slots::SLOTS)];
        for one in report.slots.iter().filter(|one| free.iter().any(|span| contains(*span, one.slot))) {
            slots[usize::from(one.slot)] = (one.accesses_per_s, one.bytes as f64);
        }
        let accesses: f64 = slots.iter().map(|(accesses, _)| accesses).sum();
        let bytes: f64 = slots.iter().map(|(_, bytes)| bytes).sum();
        let measure = match (accesses >= SPLIT_ACCESSES_PER_S, bytes > 0.0) {
            (true, _) => SplitMeasure::Accesses,
            (false, true) => SplitMeasure::Bytes,
            (false, false) => SplitMeasure::Slots,
        };
        let weight = |(accesses, bytes): &(f64, f64)| match measure {
            SplitMeasure::Accesses => *accesses,
            SplitMeasure::Bytes => *bytes,
            SplitMeasure::Slots => 1.0,
        };
        let each: Vec<f64> = slots.iter().map(weight).collect();
        let weights = SlotWeights::of(&each, &free);
        let heaviest = heaviest(&each, &weights);
        let scattered =
            || format!("its slots lie in {} ranges, and a plan has at most {BALANCE_MOVES} moves", free.len());
        let Some(best) = weights.best(&free) else {
            let (slot, part) = heaviest;
            // What is beside it is less than is worth a plan.
            if part >= 1.0 - 2.0 * SPLIT_LEAST_PART {
                return Err(format!(
                    "slot {slot} has {:.0} % of what server {source} has to do, by {}, and a slot is never divided: \
                     nothing is moved; `sandstorm hot` names its keys",
                    part * 100.0,
                    measure.name()
                ));
            }
            return Err(format!(
                "server {source} cannot be split: {}; `sandstorm cluster move` brings ranges together",
                scattered()
            ));
        };
        let part = best.weight / weights.all;
        let is_far = (part - 0.5).abs() > SPLIT_TOLD_OFF;
        let told =
            |(slot, of): (u16, f64)| format!("slot {slot} alone has {:.0} %: a slot is never divided", of * 100.0);
        let of_bytes = |(place, (_, bytes)): (usize, &(f64, f64))| {
            best.spans.iter().any(|span| contains(*span, place as u16)).then_some(*bytes)
        };
        let bytes = slots.iter().enumerate().filter_map(of_bytes).sum::<f64>() as u64;
        let (slots, moved) = (count(best.spans.iter().copied()), |span: &SlotSpan| PlannedMove {
            span: *span,
            source: source.to_owned(),
            target: target.to_owned(),
        });
        let mut moves: Vec<PlannedMove> = best.spans.iter().map(moved).collect();
        moves.sort_by_key(|one| one.span.first);
        let remarks = match is_far {
            true if heaviest.1 > SPLIT_TOLD_OFF => vec![told(heaviest)],
            true if moves.len() == BALANCE_MOVES => vec![scattered()],
            _ => Vec::new(),
        };
        Ok(SplitPlan { moves, measure, part, slots, bytes, remarks })
    }

    /// The slots of a server that can go to another one, if there are several.
    ///
    /// # Errors
    /// One line: the servers cannot give or take slots, whatever their slots take.
    pub(crate) fn divisible(
        &self,
        known: KnownServers<'_>,
        source: &str,
        target: &str,
    ) -> Result<Vec<SlotSpan>, String> {
        self.check_succession()?;
        known.check(source)?;
        known.check(target)?;
        if source == target {
            return Err(format!("server {source} cannot give slots to itself: name another one that takes them"));
        }
        if self.ranges.len() > BALANCE_RANGES {
            return Err(format!(
                "the slots are divided into {} ranges, and {BALANCE_RANGES} are the most that are divided further: \
                 `sandstorm cluster move` brings ranges together",
                self.ranges.len()
            ));
        }
        for id in [source, target] {
            if !known.live.contains(id) {
                return Err(format!("server {id} is silent: start it, or name another one"));
            }
        }
        if self.draining.contains_key(target) {
            return Err(format!("server {target} is drained, and takes no slots: `sandstorm cluster add` ends that"));
        }
        if self.draining.contains_key(source) {
            return Err(format!("server {source} is drained: all its slots go away already"));
        }
        let (free, owned) = (self.free_spans(source), count(self.spans_of(source)));
        match (owned, count(free.iter().copied())) {
            (0, _) => Err(format!("server {source} owns no slots: there is nothing to split")),
            (_, 0) => Err(format!(
                "all slots of server {source} are on their way already: wait until their moves have ended, or cancel \
                 some (`sandstorm cluster move SLOTS --cancel`)"
            )),
            (_, 1) => Err(format!(
                "server {source} has one slot that is not on its way, and a slot is never divided: `sandstorm hot` \
                 names its keys"
            )),
            _ => Ok(free),
        }
    }
}

/// How far from half a plan may be without a word about it.
const SPLIT_TOLD_OFF: f64 = 0.1;

fn contains(span: SlotSpan, slot: u16) -> bool {
    (span.first..=span.last).contains(&slot)
}

/// The slot that takes most, and its part of all.
fn heaviest(each: &[f64], weights: &SlotWeights) -> (u16, f64) {
    let parts =
        (0u16..).zip(each).map(|(slot, _)| (slot, weights.span(SlotSpan { first: slot, last: slot }) / weights.all));
    parts.max_by(|(_, one), (_, other)| one.total_cmp(other)).unwrap_or((0, 0.0))
}
