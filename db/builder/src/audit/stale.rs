//! Finds uses of places that have changed since they were checked.
//!
//! `match x { Some(_) if { x = None; … } => …, Some(ref y) => … }` looks at `x` once; so does `x[0][{ x = …; 0 }]` at
//! its length. [`guards`](super::guards) checks that they cannot change. This checks the events: a variant, or an
//! element of a slice, is named after a change of its place, and no discriminant or length was read in between.

use std::collections::HashSet;

use super::AuditFinding;
use super::mir::{BasicBlock, MirBody, MirEdge, MirPlace, PlaceAccess, PlaceProjection, UnknownMir};
use crate::check::rules::STALE;

/// Most blocks that are visited for all places of one function. Reaching the limit is a refusal.
const MAX_VISITED_BLOCKS: usize = 20_000_000;

/// The effect of a statement on a place.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum PlaceEvent {
    /// Its discriminant or length is read.
    Checked,
    /// A variant or element of it is named.
    Used,
    /// It, or a prefix of it, is set or mutably borrowed.
    Changed,
}

/// Returns all uses after a change that no check precedes.
pub(super) fn check_stale(body: &MirBody) -> Result<Vec<AuditFinding>, UnknownMir> {
    let blocks: Vec<Vec<(PlaceEvent, MirPlace, &str)>> = body.blocks.iter().map(events).collect();
    let named = |event: PlaceEvent| -> HashSet<&MirPlace> {
        blocks.iter().flatten().filter(|(found, _, _)| *found == event).map(|(_, place, _)| place).collect()
    };
    // A place that is never checked needs no check: the only variant of a type, an array.
    let places: Vec<&MirPlace> = named(PlaceEvent::Checked).intersection(&named(PlaceEvent::Used)).copied().collect();
    let changed = named(PlaceEvent::Changed);
    let mut found = Vec::new();
    for (number, place) in places.iter().enumerate() {
        if (number + 1).saturating_mul(blocks.len()) > MAX_VISITED_BLOCKS {
            return Err(UnknownMir::saying("so many matches in one function"));
        }
        if !changed.iter().any(|one| invalidates(one, place)) {
            continue;
        }
        let through = |block: usize, mut stale: bool| {
            for (event, other, from) in blocks.get(block).into_iter().flatten() {
                match event {
                    PlaceEvent::Checked if other == *place => stale = false,
                    PlaceEvent::Used if stale && other == *place => return (stale, Some((*from).to_owned())),
                    PlaceEvent::Changed if invalidates(other, place) => stale = true,
                    _ => {}
                }
            }
            (stale, None)
        };
        if let Some(from) = first_violation(body, through) {
            found.push(AuditFinding::new(&STALE, "a place is used that changed after it was looked at", &from));
        }
    }
    Ok(found)
}

/// Walks all paths through a body with a state that starts as `false` everywhere. `through` gives the state after a
/// block, and the place of a violation.
pub(super) fn first_violation(
    body: &MirBody,
    through: impl Fn(usize, bool) -> (bool, Option<String>),
) -> Option<String> {
    let (mut seen, mut waiting) = (HashSet::new(), Vec::new());
    let follow = |block: &BasicBlock, waiting: &mut Vec<usize>| {
        waiting.extend(block.next.iter().filter(|(edge, _)| *edge == MirEdge::Real).map(|(_, next)| *next));
    };
    for (number, block) in body.blocks.iter().enumerate().filter(|(_, block)| !block.cleanup) {
        let (state, wrong) = through(number, false);
        if wrong.is_some() {
            return wrong;
        }
        if state {
            follow(block, &mut waiting);
        }
    }
    while let Some(number) = waiting.pop() {
        let Some(block) = body.blocks.get(number).filter(|_| seen.insert(number)) else { continue };
        let (state, wrong) = through(number, true);
        if wrong.is_some() {
            return wrong;
        }
        if state {
            follow(block, &mut waiting);
        }
    }
    None
}

/// Returns whether a change of the one place changes the other: it is a prefix of it, or the index of its element.
fn invalidates(changed: &MirPlace, place: &MirPlace) -> bool {
    place.may_start_with(changed)
        || (changed.way.is_empty() && place.way.contains(&PlaceProjection::Index(changed.local)))
}

fn events(block: &BasicBlock) -> Vec<(PlaceEvent, MirPlace, &str)> {
    let mut events = Vec::new();
    if block.cleanup {
        return events;
    }
    for statement in &block.statements {
        let from = statement.from.as_str();
        for (access, place) in &statement.accesses {
            for (steps, step) in place.way.iter().enumerate() {
                if matches!(step, PlaceProjection::Downcast(_)) || step.is_array_projection() {
                    events.push((PlaceEvent::Used, place.part(steps), from));
                }
            }
            let event = match access {
                PlaceAccess::Discriminant | PlaceAccess::Length | PlaceAccess::LengthPointer => PlaceEvent::Checked,
                access if access.changes() => PlaceEvent::Changed,
                _ => continue,
            };
            events.push((event, place.clone(), from));
        }
    }
    events
}
