//! Checks that a guard, or an index of an index, leaves alone the place that was looked at before.
//!
//! `match x { Some(_) if … => …, Some(ref y) => … }` looks at `x` once, `x[i][…]` at the length of `x` once. The
//! compiler protects both with a `&fake` borrow that ends in a `FakeRead` where the guard holds, or after the index is
//! computed. If that is never reached, or if an assignment makes it forget the borrow, it protects nothing (rust-lang
//! issues 161578, 160599, 161852). Here the rule does not depend on reachability. From a `&fake` borrow to its
//! `FakeRead`, or to where the guard fails, nothing that it covers is set, borrowed to be changed, moved or dropped.
//! The `FakeRead` must be reachable, no call may end without returning, and no future may be suspended.
//!
//! The point where a guard fails needs no name either. The borrow checker assumes that a guard may be skipped (the
//! imaginary edge of `falseEdge`), so what follows can be reached without the borrow, and the guard itself cannot.

use super::AuditFinding;
use super::mir::{MirBody, MirPlace, PlaceAccess, UnknownMir};
use crate::check::rules::{INDEX, STALE};
use crate::limits::MAX_DIAGNOSTICS;

/// Most blocks that are visited for all guards of one function. Reaching the limit is a refusal.
const MAX_VISITED_BLOCKS: usize = 20_000_000;

/// Returns all findings about the guards and indexes of a function.
pub(super) fn check_guards(body: &MirBody) -> Result<Vec<AuditFinding>, UnknownMir> {
    let fakes = fake_borrows(body)?;
    if fakes.is_empty() {
        return Ok(Vec::new());
    }
    let dominators = Dominators::of(body);
    let mut found = Vec::new();
    let mut walked = 0_usize;
    for fake in &fakes {
        walked += fake.look(body, &dominators, &mut found)?;
        if found.len() >= MAX_DIAGNOSTICS {
            // It is refused already; no further finding is needed.
            break;
        }
        if walked > MAX_VISITED_BLOCKS {
            return Err(UnknownMir::saying("so many guards in one function"));
        }
    }
    Ok(found)
}

/// A borrow that protects a place.
struct FakeBorrow<'b> {
    block: usize,
    statement: usize,
    /// The place that it covers.
    place: &'b MirPlace,
    /// Its result.
    local: u32,
    from: &'b str,
}

/// All of them. One in a statement of another form than `_3 = &fake shallow PLACE` would not be followed.
fn fake_borrows(body: &MirBody) -> Result<Vec<FakeBorrow<'_>>, UnknownMir> {
    let mut fakes = Vec::new();
    for (block, found) in body.blocks.iter().enumerate() {
        for (number, statement) in found.statements.iter().enumerate() {
            match statement.accesses.as_slice() {
                [(PlaceAccess::FakeBorrow, place), (PlaceAccess::Assigned, result)] if result.way.is_empty() => {
                    let (local, from) = (result.local, statement.from.as_str());
                    fakes.push(FakeBorrow { block, statement: number, place, local, from });
                }
                others if others.iter().any(|(access, _)| *access == PlaceAccess::FakeBorrow) => {
                    let text = "a guard's borrow in an unknown statement".to_owned();
                    return Err(UnknownMir { text, from: statement.from.clone() });
                }
                _ => {}
            }
        }
    }
    Ok(fakes)
}

impl FakeBorrow<'_> {
    /// Checks all statements until the place may change again; returns the number of blocks visited.
    fn look(
        &self,
        body: &MirBody,
        dominators: &Dominators,
        found: &mut Vec<AuditFinding>,
    ) -> Result<usize, UnknownMir> {
        let (mut walked, mut covered) = (0_usize, false);
        let mut seen = std::collections::HashSet::new();
        let mut waiting = vec![(self.block, self.statement + 1)];
        while let Some((number, first)) = waiting.pop() {
            walked += 1;
            let Some(block) = body.blocks.get(number) else { return Err(UnknownMir::saying(&format!("bb{number}"))) };
            let mut ends = false;
            for statement in block.statements.iter().skip(first) {
                let read = |(access, place): &(PlaceAccess, MirPlace)| {
                    *access == PlaceAccess::FakeRead && place.local == self.local
                };
                if statement.accesses.iter().any(read) {
                    (covered, ends) = (true, true);
                    break;
                }
                if found.len() < MAX_DIAGNOSTICS
                    && statement.accesses.iter().any(|(access, place)| self.forbids(*access, place))
                {
                    found.push(AuditFinding::new(
                        &STALE,
                        "a guard or an index changes the place that was looked at before it",
                        &statement.from,
                    ));
                }
            }
            if ends {
                continue;
            }
            let from = block.statements.last().map(|last| last.from.as_str()).unwrap_or_default();
            if block.diverges {
                found.push(AuditFinding::new(&STALE, "a guard or an index calls what never returns", from));
            }
            if block.yields {
                found.push(AuditFinding::new(
                    &INDEX,
                    "there is an `.await` in a guard or in an index of an index",
                    from,
                ));
            }
            for (_, next) in &block.next {
                if dominators.dominates(self.block, *next) && *next != self.block && seen.insert(*next) {
                    waiting.push((*next, 0));
                }
            }
        }
        if !covered {
            found.push(AuditFinding::new(&STALE, "a guard can never hold, or an index is never worked out", self.from));
        }
        Ok(walked)
    }

    /// Returns whether that access would change the place. The target of a pointer is another place.
    fn forbids(&self, access: PlaceAccess, other: &MirPlace) -> bool {
        access.changes() && other.may_alias(self.place) && !other.derefs_after(self.place.way.len())
    }
}

/// The dominators of blocks: the blocks that every path to a block leads through.
struct Dominators {
    /// For each block, the times of entering and leaving it in a walk through the dominator tree.
    spans: Vec<(usize, usize)>,
}

impl Dominators {
    fn of(body: &MirBody) -> Dominators {
        let order = postorder(body);
        let mut rank = vec![None; body.blocks.len()];
        order.iter().enumerate().for_each(|(at, block)| set(&mut rank, *block, Some(at)));
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); body.blocks.len()];
        for block in &order {
            for (_, next) in body.blocks.get(*block).map(|found| found.next.as_slice()).unwrap_or_default() {
                before.get_mut(*next).into_iter().for_each(|found| found.push(*block));
            }
        }
        // Indexed by the rank of blocks: each one's immediate dominator, of higher rank.
        let mut above: Vec<Option<usize>> = vec![None; order.len()];
        let entry = order.len().saturating_sub(1);
        set(&mut above, entry, Some(entry));
        let mut changed = true;
        while changed {
            changed = false;
            for at in (0..entry).rev() {
                let known = order.get(at).and_then(|block| before.get(*block)).into_iter().flatten();
                let mut known = known
                    .filter_map(|block| rank.get(*block).copied().flatten())
                    .filter(|rank| above.get(*rank).copied().flatten().is_some());
                let Some(first) = known.next() else { continue };
                let meeting = known.fold(first, |one, other| common_dominator(&above, one, other));
                if above.get(at).copied().flatten() != Some(meeting) {
                    set(&mut above, at, Some(meeting));
                    changed = true;
                }
            }
        }
        Dominators { spans: dominator_spans(&order, &above, body.blocks.len()) }
    }

    /// Returns whether every path to a block leads through the other. For an unreachable block the answer is no.
    fn dominates(&self, one: usize, other: usize) -> bool {
        match (self.spans.get(one), self.spans.get(other)) {
            (Some((start, end)), Some((at, last))) => *at > 0 && start <= at && last <= end,
            _ => false,
        }
    }
}

fn set<T>(list: &mut [T], at: usize, value: T) {
    if let Some(found) = list.get_mut(at) {
        *found = value;
    }
}

fn common_dominator(above: &[Option<usize>], mut one: usize, mut other: usize) -> usize {
    let up = |at: usize| above.get(at).copied().flatten().unwrap_or(usize::MAX);
    while one != other {
        match one < other {
            true => one = up(one),
            false => other = up(other),
        }
        if one == usize::MAX || other == usize::MAX {
            return above.len().saturating_sub(1);
        }
    }
    one
}

/// The reachable blocks, each after its successors; the entry is the last.
fn postorder(body: &MirBody) -> Vec<usize> {
    let mut order = Vec::new();
    let mut seen = vec![false; body.blocks.len()];
    let mut path = vec![(0_usize, 0_usize)];
    set(&mut seen, 0, true);
    while let Some((block, at)) = path.pop() {
        let next = body.blocks.get(block).and_then(|found| found.next.get(at));
        let Some((_, next)) = next else {
            order.push(block);
            continue;
        };
        path.push((block, at + 1));
        if seen.get(*next) == Some(&false) {
            set(&mut seen, *next, true);
            path.push((*next, 0));
        }
    }
    order
}

fn dominator_spans(order: &[usize], above: &[Option<usize>], blocks: usize) -> Vec<(usize, usize)> {
    let mut below: Vec<Vec<usize>> = vec![Vec::new(); order.len()];
    for (at, parent) in above.iter().enumerate() {
        if let Some(parent) = parent.filter(|parent| *parent != at) {
            below.get_mut(parent).into_iter().for_each(|found| found.push(at));
        }
    }
    let mut spans = vec![(0_usize, 0_usize); blocks];
    let mut clock = 0_usize;
    let mut path = vec![(order.len().saturating_sub(1), 0_usize)];
    while let Some((at, child)) = path.pop() {
        let span = order.get(at).and_then(|block| spans.get_mut(*block));
        let Some(span) = span else { continue };
        clock += 1;
        if child == 0 {
            span.0 = clock;
        }
        match below.get(at).and_then(|children| children.get(child)) {
            Some(next) => path.extend([(at, child + 1), (*next, 0)]),
            None => span.1 = clock,
        }
    }
    spans
}
