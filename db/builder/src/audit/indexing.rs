//! Checks places with an index in them, which the compiler gets wrong in two ways.
//!
//! In `rows[0][{ … }]` the inner index is computed after the outer one and before the place is used. The compiler does
//! not notice what happens there to the place itself. A pattern can take a piece of the array away (rust-lang issue
//! 160525: use after free). An `.await` forgets the outer index after it was checked, so that the place is anywhere; so
//! does one in a guard of `match rows[0] { … }`. Both show in the intermediate form: a run-time index into an array
//! from which a piece was moved, and an index that was set before an `.await` and is used in a place after it.

use std::collections::HashSet;

use super::AuditFinding;
use super::mir::{MirBody, MirPlace, PlaceAccess, PlaceProjection, UnknownMir};
use super::stale::first_violation;
use crate::check::rules::INDEX;

/// Most blocks that are visited for all indexes of one function. Reaching the limit is a refusal.
const MAX_VISITED_BLOCKS: usize = 20_000_000;

/// Returns the findings about a function's indexed places.
pub(super) fn check_indexing(body: &MirBody) -> Result<Vec<AuditFinding>, UnknownMir> {
    let forgotten = index_lost_across_await(body)?.map(|from| {
        let what = "an index is worked out before an `.await` and used behind it, where the compiler has forgotten it";
        AuditFinding::new(&INDEX, what, &from)
    });
    let taken = index_after_partial_move(body)?.map(|from| {
        AuditFinding::new(&INDEX, "an index takes a piece of the very array that it is an index of", &from)
    });
    Ok(forgotten.into_iter().chain(taken).collect())
}

fn accesses(body: &MirBody) -> impl Iterator<Item = &(PlaceAccess, MirPlace)> {
    body.blocks.iter().flat_map(|block| &block.statements).flat_map(|statement| &statement.accesses)
}

fn check_walk_bound(body: &MirBody, times: usize) -> Result<(), UnknownMir> {
    match times.saturating_mul(body.blocks.len()) > MAX_VISITED_BLOCKS {
        true => Err(UnknownMir::saying("so many indexes in one function")),
        false => Ok(()),
    }
}

/// Returns where a place uses an index that was set before an `.await`.
fn index_lost_across_await(body: &MirBody) -> Result<Option<String>, UnknownMir> {
    if !body.blocks.iter().any(|block| block.yields) {
        return Ok(None);
    }
    let index = |step: &PlaceProjection| match step {
        PlaceProjection::Index(local) => Some(*local),
        _ => None,
    };
    let indexes: HashSet<u32> = accesses(body).flat_map(|(_, place)| place.way.iter().filter_map(index)).collect();
    check_walk_bound(body, indexes.len())?;
    let used = |local: u32| {
        first_violation(body, |number, mut stale| {
            let Some(block) = body.blocks.get(number) else { return (stale, None) };
            for statement in &block.statements {
                for (access, place) in &statement.accesses {
                    if stale && place.way.contains(&PlaceProjection::Index(local)) {
                        return (stale, Some(statement.from.clone()));
                    }
                    stale &= !(*access == PlaceAccess::Assigned && *place == MirPlace::of_local(local));
                }
            }
            (stale || block.yields, None)
        })
    };
    Ok(indexes.into_iter().find_map(used))
}

/// Returns where a run-time index names an element after a piece of the array was moved away. In all other code the
/// compiler refuses that itself.
fn index_after_partial_move(body: &MirBody) -> Result<Option<String>, UnknownMir> {
    let moved = accesses(body).filter(|(access, _)| *access == PlaceAccess::Moved).map(|(_, place)| place);
    let pieces: HashSet<(&MirPlace, usize)> = moved
        .flat_map(|place| {
            let at = place.way.iter().enumerate().filter(|(_, step)| step.is_pattern_projection());
            at.map(move |(steps, _)| (place, steps))
        })
        .collect();
    check_walk_bound(body, pieces.len())?;
    let used = |(piece, steps): (&MirPlace, usize)| {
        let array = piece.part(steps);
        first_violation(body, |number, mut gone| {
            for statement in body.blocks.get(number).into_iter().flat_map(|block| &block.statements) {
                for (access, place) in &statement.accesses {
                    let indexed = matches!(place.way.get(steps), Some(PlaceProjection::Index(_)));
                    if gone && indexed && place.may_start_with(&array) {
                        return (gone, Some(statement.from.clone()));
                    }
                    match access {
                        PlaceAccess::Moved if place == piece => gone = true,
                        PlaceAccess::Assigned if array.part(place.way.len()) == *place => gone = false,
                        _ => {}
                    }
                }
            }
            (gone, None)
        })
    };
    Ok(pieces.into_iter().find_map(used))
}
