//! When the datagrams of a burst were received: as the kernel says it, where it does, so that they wait from then on,
//! and not only from when the worker came to take them.
//!
//! Messages that came within [`SAME_ARRIVAL_NS`] count with the time of one of them, drawn evenly. So the answers of a
//! turn stay few entries of the ledger, while their waiting is distributed as it was.

use arrayvec::ArrayVec;
use sandstorm_net::driver::{ArrivalClock, Burst, MessageArrival};

use crate::limits::{BURST, SAME_ARRIVAL_NS};

/// Neighbouring datagrams of a burst that count as received at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArrivalGroup {
    /// Index of the first datagram behind them.
    pub(super) until: u16,
    /// When they were received, in the workers' nanoseconds.
    pub(super) received_ns: u64,
}

/// The groups of a burst; at least one.
pub(super) type ArrivalGroups = ArrayVec<ArrivalGroup, BURST>;

/// Finds the groups of bursts.
#[derive(Debug, Default)]
pub(super) struct ArrivalSampler {
    /// What the workers' clock was at a Unix time.
    pub(super) clock: ArrivalClock,
    /// Numbers that are spread evenly, to draw by.
    draws: u32,
}

impl ArrivalSampler {
    /// The groups of a burst that is received in the turn which began at `now_ns`.
    #[inline]
    pub(super) fn groups(&mut self, burst: &Burst, now_ns: u64) -> ArrivalGroups {
        let (mut groups, mut rest) = (ArrivalGroups::new(), burst.arrivals());
        while let Some(first) = rest.first()
            && !groups.is_full()
        {
            let is_same = |one: &&MessageArrival| one.unix_ns.abs_diff(first.unix_ns) <= SAME_ARRIVAL_NS;
            let (group, later) = rest.split_at(rest.iter().take_while(is_same).count());
            // The multiplier is 2^32 over the golden ratio.
            self.draws = self.draws.wrapping_add(0x9E37_79B9);
            let drawn = (u64::from(self.draws) * group.len() as u64) >> 32;
            let unix_ns = group.get(drawn as usize).unwrap_or(first).unix_ns;
            let until = later.first().map_or(u16::MAX, |next| next.first as u16);
            groups.push(ArrivalGroup { until, received_ns: self.clock.received_ns(unix_ns, now_ns) });
            rest = later;
        }
        if groups.is_empty() {
            groups.push(ArrivalGroup { until: u16::MAX, received_ns: now_ns });
        }
        groups
    }
}

/// Goes through the groups of a burst.
pub(super) struct ArrivalCursor<'g> {
    later: &'g [ArrivalGroup],
    until: u16,
    /// When the datagrams of the present group were received, in the workers' nanoseconds.
    pub(super) received_ns: u64,
}

impl<'g> ArrivalCursor<'g> {
    pub(super) fn new(groups: &'g [ArrivalGroup]) -> ArrivalCursor<'g> {
        ArrivalCursor { later: groups, until: 0, received_ns: 0 }
    }

    /// Goes on to a datagram. Returns whether it begins another group than the datagram before it.
    #[inline]
    pub(super) fn begins_group(&mut self, index: usize) -> bool {
        let begins = index >= usize::from(self.until);
        while index >= usize::from(self.until)
            && let Some((next, later)) = self.later.split_first()
        {
            (self.until, self.received_ns, self.later) = (next.until, next.received_ns, later);
        }
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIX_NS: u64 = 1_800_000_000_000_000_000;
    const NOW_NS: u64 = 2_000_000_000;

    fn sampler() -> ArrivalSampler {
        let mut sampler = ArrivalSampler::default();
        sampler.clock.note(0, UNIX_NS);
        sampler
    }

    /// A burst of messages of two datagrams each, received at these times of the workers' clock.
    fn burst(received_ns: &[u64]) -> Burst {
        let mut burst = Burst::new(BURST, 64);
        for received_ns in received_ns {
            burst.note_arrival(UNIX_NS + received_ns);
            assert!(burst.push_segments(sandstorm_net::driver::NO_PEER, &[1; 20], 10));
        }
        burst
    }

    #[test]
    fn each_of_messages_that_came_together_is_drawn_as_often() {
        let (mut sampler, mut drawn) = (sampler(), [0; 4]);
        let burst = burst(&[1_000, 2_000, 3_000, 4_000]);
        for _ in 0..4_000 {
            let groups = sampler.groups(&burst, NOW_NS);
            assert_eq!((groups.len(), groups[0].until), (1, u16::MAX));
            drawn[groups[0].received_ns as usize / 1_000 - 1] += 1;
        }
        assert!(drawn.iter().all(|times| (950..1_050).contains(times)), "{drawn:?}");
    }

    #[test]
    fn messages_far_apart_have_their_own_times_and_none_comes_after_the_turn() {
        let far_ns = SAME_ARRIVAL_NS + 1;
        let burst = burst(&[0, far_ns, far_ns + 5, NOW_NS + 7]);
        let groups = sampler().groups(&burst, NOW_NS);
        let found: Vec<(u16, u64)> = groups.iter().map(|group| (group.until, group.received_ns)).collect();
        assert!(matches!(found[..], [(2, 0), (6, second), (u16::MAX, NOW_NS)] if second >= far_ns), "{found:?}");
        let mut cursor = ArrivalCursor::new(&groups);
        let begins: Vec<bool> = (0..8).map(|index| cursor.begins_group(index)).collect();
        assert_eq!(begins, [true, false, true, false, false, false, true, false]);
        assert_eq!(cursor.received_ns, NOW_NS);
        // One that begins in the middle.
        let mut cursor = ArrivalCursor::new(&groups);
        assert!(cursor.begins_group(3) && cursor.received_ns >= far_ns && !cursor.begins_group(4));
    }

    #[test]
    fn what_no_kernel_has_received_came_with_the_turn() {
        let mut burst = Burst::new(1, 64);
        assert!(burst.push(sandstorm_net::driver::NO_PEER, b"x"));
        let groups = sampler().groups(&burst, NOW_NS);
        assert_eq!(groups[..], [ArrivalGroup { until: u16::MAX, received_ns: NOW_NS }]);
    }
}
