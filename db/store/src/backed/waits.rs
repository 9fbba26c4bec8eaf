//! Waits: what an answer waits for that shows a change which the backing of its table does not have yet.
//!
//! A wait is a number that goes where positions of the log go ([`crate::ShownPosition`]), with its highest bit set. So
//! answers of every protocol wait for a backing as they wait for the disk. Unlike positions, waits end in any order: an
//! answer that has seen several of them, or a position besides, has a *joined* one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;

/// The bit that tells a wait from a position of the log, which counts bytes.
const WAIT_BIT: u64 = 1 << 63;
/// The time after which a wait that has ended is forgotten. Answers look at it within a turn of their worker; one that
/// came later would be told that nobody knows.
const FORGET_AFTER: Duration = Duration::from_secs(10);

/// What became of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitState {
    /// The backing has not ended.
    Waits,
    /// The backing has it; the answer waits for this position of the log besides (0: for none).
    Ended(u64),
    /// The backing has refused, or nobody knows.
    Failed,
}

#[derive(Debug)]
enum BackingWait {
    Open,
    Done,
    Failed,
    /// All of these, and a position of the log.
    Joined(Vec<u64>, u64),
}

#[derive(Default)]
struct AllWaits {
    last: u64,
    waits: HashMap<u64, BackingWait>,
    /// In the order in which they were made.
    order: VecDeque<(u64, Instant)>,
}

/// Those of the process: a wait goes with the answer of a table that a thread has used, whichever server has it.
static WAITS: Mutex<Option<AllWaits>> = Mutex::new(None);

fn with_waits<R>(f: impl FnOnce(&mut AllWaits) -> R) -> R {
    f(WAITS.lock().get_or_insert_default())
}

impl AllWaits {
    fn add(&mut self, wait: BackingWait) -> u64 {
        let now = Instant::now();
        while let Some((id, since)) = self.order.front().copied()
            && now.duration_since(since) > FORGET_AFTER
            && self.state_of(id) != WaitState::Waits
        {
            self.waits.remove(&id);
            self.order.pop_front();
        }
        self.last += 1;
        let id = self.last | WAIT_BIT;
        self.waits.insert(id, wait);
        self.order.push_back((id, now));
        id
    }

    fn state_of(&self, id: u64) -> WaitState {
        match self.waits.get(&id) {
            Some(BackingWait::Open) => WaitState::Waits,
            Some(BackingWait::Done) => WaitState::Ended(0),
            // One that was forgotten had ended long before.
            Some(BackingWait::Failed) | None => WaitState::Failed,
            Some(BackingWait::Joined(parts, position)) => {
                let mut state = WaitState::Ended(*position);
                for part in parts {
                    match self.waits.get(part) {
                        Some(BackingWait::Done) => {}
                        Some(BackingWait::Open) => state = WaitState::Waits,
                        _ => return WaitState::Failed,
                    }
                }
                state
            }
        }
    }

    fn parts_of(&self, position: u64) -> (Vec<u64>, u64) {
        match self.waits.get(&position) {
            Some(BackingWait::Joined(parts, position)) => (parts.clone(), *position),
            Some(BackingWait::Done) => (Vec::new(), 0),
            _ if position & WAIT_BIT != 0 => (vec![position], 0),
            _ => (Vec::new(), position),
        }
    }
}

/// Returns whether this is a wait, and no position of the log.
#[inline]
pub fn is_wait(position: u64) -> bool {
    position & WAIT_BIT != 0
}

/// Begins a wait.
pub fn begin() -> u64 {
    with_waits(|all| all.add(BackingWait::Open))
}

/// Ends a wait, or all that are joined in it: the backing has the change, or has refused it.
pub fn end(wait: u64, is_done: bool) {
    with_waits(|all| {
        for part in all.parts_of(wait).0 {
            if let Some(found @ BackingWait::Open) = all.waits.get_mut(&part) {
                *found = if is_done { BackingWait::Done } else { BackingWait::Failed };
            }
        }
    });
}

/// Returns what became of a wait.
pub fn state_of(wait: u64) -> WaitState {
    with_waits(|all| all.state_of(wait))
}

/// Returns the position of the log that a wait has besides; a position itself is its own.
pub fn log_position(position: u64) -> u64 {
    if is_wait(position) { with_waits(|all| all.parts_of(position).1) } else { position }
}

/// Returns what waits for both.
#[inline]
pub fn later_of(one: u64, other: u64) -> u64 {
    if (one | other) & WAIT_BIT == 0 { one.max(other) } else { join(one, other) }
}

#[cold]
fn join(one: u64, other: u64) -> u64 {
    if one == 0 || one == other {
        return other;
    }
    if other == 0 {
        return one;
    }
    with_waits(|all| {
        let ((mut parts, position), (more, other_position)) = (all.parts_of(one), all.parts_of(other));
        parts.extend(more);
        parts.sort_unstable();
        parts.dedup();
        parts.retain(|part| !matches!(all.waits.get(part), Some(BackingWait::Done)));
        let position = position.max(other_position);
        if parts.is_empty() { position } else { all.add(BackingWait::Joined(parts, position)) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_joined_wait_ends_when_all_parts_have_and_fails_when_one_has() {
        let (one, two, three) = (begin(), begin(), begin());
        assert!(is_wait(one) && !is_wait(7));
        assert_eq!(later_of(5, 9), 9);
        assert_eq!((later_of(0, one), later_of(one, 0), later_of(one, one)), (one, one, one));
        let both = later_of(later_of(one, 4), later_of(two, 9));
        assert_eq!((state_of(both), log_position(both)), (WaitState::Waits, 9));
        end(two, true);
        assert_eq!(state_of(both), WaitState::Waits);
        end(one, true);
        assert_eq!(state_of(both), WaitState::Ended(9));
        let (four, five) = (begin(), begin());
        end(later_of(four, five), true);
        assert_eq!((state_of(four), state_of(five)), (WaitState::Ended(0), WaitState::Ended(0)), "each of its parts");
        assert_eq!(later_of(one, 3), 3, "what has ended is nothing to wait for");
        let with_failed = later_of(begin(), three);
        end(three, false);
        assert_eq!(state_of(with_failed), WaitState::Failed, "whatever the other becomes");
        assert_eq!(state_of(1 << 63 | u64::MAX >> 2), WaitState::Failed, "one that nobody has begun");
    }
}
