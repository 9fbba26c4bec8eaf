//! Waits for a backing: an answer that shows a change waits until the backing of its table has it.
//!
//! A wait is a number that is used like a position of the log ([`crate::ShownPosition`]), with its highest bit set. So
//! answers of every protocol wait for a backing as they wait for the disk. Unlike positions, waits end in any order: an
//! answer that has seen several of them, or a position besides, has a *joined* one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use sandstorm_log::later_position;

/// The bit that tells a wait from a position of the log, which counts bytes.
const WAIT_BIT: u64 = 1 << 63;
/// The time after which a wait that has ended is forgotten. Answers look at it within a turn of their worker; a later
/// one would be told that the outcome is unknown.
const FORGET_AFTER: Duration = Duration::from_secs(10);

/// The outcome of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitState {
    /// The backing has not ended.
    Waits,
    /// The backing has it; the answer waits for this position of the log besides (0: for none).
    Ended(u64),
    /// The backing has refused, or the outcome is unknown.
    Failed,
}

/// Waits that end with another one.
type JoinedIn = Vec<u64>;

#[derive(Debug)]
enum BackingWait {
    Open(JoinedIn),
    Done,
    Failed,
    Joined(JoinedWait),
}

/// Two waits as one. A message of many keys has a chain of these, each of which joins the one before and one more: so
/// to join, to end and to look take the same time for the last key as for the first.
#[derive(Debug)]
struct JoinedWait {
    parts: [u64; 2],
    /// Those of the parts that wait.
    left: usize,
    has_failed: bool,
    /// The highest position of the log among all that is joined.
    position: u64,
    joined_in: JoinedIn,
}

impl JoinedWait {
    fn state(&self) -> WaitState {
        match (self.has_failed, self.left) {
            (true, _) => WaitState::Failed,
            (false, 0) => WaitState::Ended(self.position),
            (false, _) => WaitState::Waits,
        }
    }
}

#[derive(Default)]
struct AllWaits {
    last: u64,
    waits: HashMap<u64, BackingWait>,
    /// In the order in which they were made.
    order: VecDeque<(u64, Instant)>,
    /// Waits that were looked at.
    #[cfg(test)]
    looks: std::cell::Cell<usize>,
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

    fn begin(&mut self) -> u64 {
        self.add(BackingWait::Open(Vec::new()))
    }

    /// A position of the log is no wait: it has ended.
    fn state_of(&self, id: u64) -> WaitState {
        self.note_look();
        match self.waits.get(&id) {
            _ if id & WAIT_BIT == 0 => WaitState::Ended(id),
            Some(BackingWait::Open(_)) => WaitState::Waits,
            Some(BackingWait::Done) => WaitState::Ended(0),
            Some(BackingWait::Joined(joined)) => joined.state(),
            // A forgotten wait had ended long before.
            Some(BackingWait::Failed) | None => WaitState::Failed,
        }
    }

    fn position_of(&self, id: u64) -> u64 {
        match self.waits.get(&id) {
            _ if id & WAIT_BIT == 0 => id,
            Some(BackingWait::Joined(joined)) => joined.position,
            _ => 0,
        }
    }

    fn join(&mut self, one: u64, other: u64) -> u64 {
        let parts = [one, other];
        let (states, positions) = (parts.map(|part| self.state_of(part)), parts.map(|part| self.position_of(part)));
        let position = later_position(positions[0], positions[1]);
        let has_failed = states.contains(&WaitState::Failed);
        let left = states.iter().filter(|state| **state == WaitState::Waits).count();
        if !has_failed {
            let sole = (0..2).find(|part| left == 1 && states[*part] == WaitState::Waits);
            match sole {
                // Of what has ended, only the position counts.
                _ if left == 0 => return position,
                Some(part) if positions[part] == position => return parts[part],
                _ => {}
            }
        }
        let joined = JoinedWait { parts, left, has_failed, position, joined_in: Vec::new() };
        let id = self.add(BackingWait::Joined(joined));
        for (part, _) in parts.iter().zip(states).filter(|(_, state)| !has_failed && *state == WaitState::Waits) {
            match self.waits.get_mut(part) {
                Some(BackingWait::Open(joined_in)) => joined_in.push(id),
                Some(BackingWait::Joined(joined)) => joined.joined_in.push(id),
                Some(BackingWait::Done | BackingWait::Failed) | None => {}
            }
        }
        id
    }

    /// Ends a wait, or all that are joined in it.
    fn end(&mut self, wait: u64, is_done: bool) {
        let mut parts = vec![wait];
        while let Some(part) = parts.pop() {
            self.note_look();
            match self.waits.get_mut(&part) {
                Some(BackingWait::Joined(joined)) if joined.left > 0 || joined.has_failed => parts.extend(joined.parts),
                Some(found @ BackingWait::Open(_)) => {
                    let ended = if is_done { BackingWait::Done } else { BackingWait::Failed };
                    if let BackingWait::Open(joined_in) = std::mem::replace(found, ended) {
                        self.tell(joined_in, is_done);
                    }
                }
                _ => {}
            }
        }
    }

    /// Tells those in which a wait is joined that it has ended, and goes on with those that end by that.
    fn tell(&mut self, joined_in: JoinedIn, is_done: bool) {
        let mut told: Vec<(u64, bool)> = joined_in.into_iter().map(|id| (id, is_done)).collect();
        while let Some((id, is_done)) = told.pop() {
            self.note_look();
            let Some(BackingWait::Joined(joined)) = self.waits.get_mut(&id) else { continue };
            let has_waited = joined.state() == WaitState::Waits;
            joined.left = joined.left.saturating_sub(1);
            joined.has_failed |= !is_done;
            if has_waited && joined.state() != WaitState::Waits {
                let is_done = !joined.has_failed;
                told.extend(std::mem::take(&mut joined.joined_in).into_iter().map(|id| (id, is_done)));
            }
        }
    }

    #[inline]
    fn note_look(&self) {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
    }
}

/// Returns whether this is a wait, and no position of the log.
#[inline]
pub fn is_wait(position: u64) -> bool {
    position & WAIT_BIT != 0
}

/// Begins a wait.
pub fn begin() -> u64 {
    with_waits(AllWaits::begin)
}

/// Ends a wait, or all that are joined in it: the backing has the change, or has refused it.
pub fn end(wait: u64, is_done: bool) {
    with_waits(|all| all.end(wait, is_done));
}

/// Returns the outcome of a wait.
pub fn state_of(wait: u64) -> WaitState {
    with_waits(|all| all.state_of(wait))
}

/// Returns the position of the log that a wait has besides; a position itself is its own.
pub fn log_position(position: u64) -> u64 {
    if is_wait(position) { with_waits(|all| all.position_of(position)) } else { position }
}

/// Returns what waits for both.
#[inline]
pub fn later_of(one: u64, other: u64) -> u64 {
    if (one | other) & WAIT_BIT == 0 { later_position(one, other) } else { join(one, other) }
}

#[cold]
fn join(one: u64, other: u64) -> u64 {
    if one == 0 || one == other {
        return other;
    }
    if other == 0 {
        return one;
    }
    with_waits(|all| all.join(one, other))
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

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

    #[test]
    fn the_last_key_of_a_long_message_costs_what_the_first_one_does() {
        const KEYS: usize = 5_000;
        let mut all = AllWaits::default();
        let waits: Vec<u64> = (0..KEYS).map(|_| all.begin()).collect();
        let mut shown = 9;
        for wait in &waits {
            shown = all.join(shown, *wait);
            assert_eq!((all.state_of(shown), all.position_of(shown)), (WaitState::Waits, 9));
        }
        for wait in &waits {
            assert_eq!(all.state_of(shown), WaitState::Waits);
            all.end(*wait, true);
        }
        assert_eq!(all.state_of(shown), WaitState::Ended(9));
        let looks = all.looks.get();
        assert!(looks < 10 * KEYS, "{looks} looks at waits for {KEYS} keys");
        assert!(all.waits.len() <= 2 * KEYS, "and memory for two a key");
    }

    #[test]
    fn waits_that_are_joined_in_any_way_end_as_a_list_of_them_does() {
        let mut random = SmallRng::seed_from_u64(5);
        for _ in 0..300 {
            let mut all = AllWaits::default();
            let single: Vec<u64> = (0..8).map(|_| all.begin()).collect();
            let mut ended = [None; 8];
            // Each joined one, and what it has joined.
            let mut joined: Vec<(u64, Vec<usize>, u64)> = (0..8).map(|at| (single[at], vec![at], 0)).collect();
            joined.extend((1..4).map(|position| (position, Vec::new(), position)));
            for _ in 0..40 {
                if random.random_bool(0.3) {
                    let (at, is_done) = (random.random_range(0..8), random.random_bool(0.8));
                    all.end(single[at], is_done);
                    ended[at].get_or_insert(is_done);
                } else {
                    let [one, other] = [0; 2].map(|_| joined[random.random_range(0..joined.len())].clone());
                    let id = if one.0 == other.0 { one.0 } else { all.join(one.0, other.0) };
                    joined.push((id, [one.1, other.1].concat(), one.2.max(other.2)));
                }
                for (id, parts, position) in &joined {
                    let of = |state| parts.iter().any(|part| ended[*part] == state);
                    let expected = match (of(Some(false)), of(None)) {
                        (true, _) => WaitState::Failed,
                        (false, true) => WaitState::Waits,
                        (false, false) => WaitState::Ended(*position),
                    };
                    assert_eq!(all.state_of(*id), expected, "{parts:?}, {ended:?}");
                }
            }
            let (id, parts, _) = &joined[random.random_range(0..joined.len())];
            all.end(*id, true);
            for part in parts {
                ended[*part] = ended[*part].or(Some(true));
            }
            for (at, wait) in single.iter().enumerate() {
                let expected = ended[at].map_or(WaitState::Waits, |is_done| match is_done {
                    true => WaitState::Ended(0),
                    false => WaitState::Failed,
                });
                assert_eq!(all.state_of(*wait), expected, "each of its parts, and no other");
            }
        }
    }
}
