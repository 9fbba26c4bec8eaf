//! Places that are used although what was checked of them has changed.
//!
//! `match x { Some(_) if { x = None; … } => …, Some(ref y) => … }` looks at `x` once; so does `x[0][{ x = …; 0 }]` at its length.
//! [`guards`](super::guards) looks at what keeps them from changing. This looks at what happens: a variant, or an element of
//! a slice, is named behind a change of its place, and no discriminant or length was read in between.

use std::collections::HashSet;

use super::Found;
use super::mir::{Access, Block, Body, Edge, Place, Step, Unknown};
use crate::check::rules::STALE;

/// Blocks that may be walked through for all places of one function. Reaching it is a refusal.
const WALKED: usize = 20_000_000;

/// What a statement has to do with a place.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Event {
    /// Its discriminant or length is read.
    Checked,
    /// A variant or element of it is named.
    Used,
    /// It, or what leads to it, is set or borrowed to be changed.
    Changed,
}

/// Everything that is used behind a change and before it is checked again.
pub(super) fn refused(body: &Body) -> Result<Vec<Found>, Unknown> {
    let blocks: Vec<Vec<(Event, Place, &str)>> = body.blocks.iter().map(events).collect();
    let named = |event: Event| -> HashSet<&Place> {
        blocks.iter().flatten().filter(|(found, _, _)| *found == event).map(|(_, place, _)| place).collect()
    };
    // What is never checked needs no check: the only variant of a type, an array.
    let places: Vec<&Place> = named(Event::Checked).intersection(&named(Event::Used)).copied().collect();
    let changed = named(Event::Changed);
    let mut found = Vec::new();
    for (number, place) in places.iter().enumerate() {
        if (number + 1).saturating_mul(blocks.len()) > WALKED {
            return Err(Unknown("so many matches in one function".to_owned()));
        }
        if !changed.iter().any(|one| leads_to(one, place)) {
            continue;
        }
        let through = |block: usize, mut stale: bool| {
            for (event, other, from) in blocks.get(block).into_iter().flatten() {
                match event {
                    Event::Checked if other == *place => stale = false,
                    Event::Used if stale && other == *place => return (stale, Some((*from).to_owned())),
                    Event::Changed if leads_to(other, place) => stale = true,
                    _ => {}
                }
            }
            (stale, None)
        };
        if let Some(from) = first_wrong(body, through) {
            found.push(Found::new(&STALE, "a place is used that changed after it was looked at", &from));
        }
    }
    Ok(found)
}

/// Walks all ways through a body with a state that starts as `false` everywhere; `through` says what a block makes of it, and
/// where something is wrong.
pub(super) fn first_wrong(body: &Body, through: impl Fn(usize, bool) -> (bool, Option<String>)) -> Option<String> {
    let (mut seen, mut waiting) = (HashSet::new(), Vec::new());
    let follow = |block: &Block, waiting: &mut Vec<usize>| {
        waiting.extend(block.next.iter().filter(|(edge, _)| *edge == Edge::Real).map(|(_, next)| *next));
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

/// Whether a change of the one place is one of the other: it lies on the way there, or says which element is meant.
fn leads_to(changed: &Place, place: &Place) -> bool {
    place.may_start_with(changed) || (changed.way.is_empty() && place.way.contains(&Step::Index(changed.local)))
}

fn events(block: &Block) -> Vec<(Event, Place, &str)> {
    let mut events = Vec::new();
    if block.cleanup {
        return events;
    }
    for statement in &block.statements {
        let from = statement.from.as_str();
        for (access, place) in &statement.accesses {
            for (steps, step) in place.way.iter().enumerate() {
                if matches!(step, Step::Variant(_)) || step.is_of_array() {
                    events.push((Event::Used, place.part(steps), from));
                }
            }
            let event = match access {
                Access::Discriminant | Access::Length | Access::ForLength => Event::Checked,
                Access::Set | Access::Changed | Access::Moved | Access::Dropped => Event::Changed,
                _ => continue,
            };
            events.push((event, place.clone(), from));
        }
    }
    events
}
