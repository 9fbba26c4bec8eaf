//! Zipf's law from tables. To draw from it by formula takes several powers of floating-point numbers, a fifth of the
//! time that a generator has for a request over a driver past the kernel.
//!
//! Ranks are in groups: the first ones alone, and from then on as many together as are drawn about equally often. A
//! group is drawn by its weight (Vose's alias method), and a rank of it evenly. The rank is accepted with its
//! probability relative to that of the group's first, which is nearly always about 1; else another one of the group is
//! drawn.

use rand::{Rng, RngCore};

/// Ranks that have a group of their own.
const SINGLE_RANKS: u64 = 64;
/// A group has as many ranks as its first one, divided by this.
const GROUP_DIVISOR: u64 = 32;
/// Fewer ranks than these are as quickly drawn by formula as the tables are made.
const MIN_RANKS: u64 = 2;

/// A row of ranks, and another one that shares its alias slot.
#[derive(Clone, Copy, Debug)]
struct RankGroup {
    /// The first rank, from 0.
    first: u64,
    count: u64,
    /// A rank is taken at once if a number drawn from 0 to 1 is below this. It is the last rank's probability relative
    /// to the first one's.
    accept_below: f64,
    /// Part of this slot that is the group's own, of 2^32.
    own: u64,
    /// The group that the rest belongs to.
    other: u32,
}

/// Draws ranks from 0 on, each with a probability in proportion to `(rank + 1)^-exponent`.
#[derive(Clone, Debug)]
pub(super) struct ZipfTable {
    groups: Box<[RankGroup]>,
    exponent: f64,
}

/// Returns the sum of `x^-exponent` over whole numbers. It takes the integral from half before the first to half behind
/// the last with the first correction of the midpoint rule. From [`SINGLE_RANKS`] on that is right to eight digits.
fn group_weight(first: u64, count: u64, exponent: f64) -> f64 {
    let (from, to) = (first as f64 + 0.5, (first + count) as f64 + 0.5);
    if count == 1 {
        return (first as f64 + 1.0).powf(-exponent);
    }
    let integral = if (exponent - 1.0).abs() < 1e-9 {
        (to / from).ln()
    } else {
        (to.powf(1.0 - exponent) - from.powf(1.0 - exponent)) / (1.0 - exponent)
    };
    let slope = |x: f64| -exponent * x.powf(-exponent - 1.0);
    integral - (slope(to) - slope(from)) / 24.0
}

impl ZipfTable {
    /// Makes tables for so many ranks; `None` where they are not worth it.
    pub(super) fn new(count: u64, exponent: f64) -> Option<ZipfTable> {
        let sane = exponent.is_finite() && exponent > 0.0 && exponent < 8.0;
        if count < MIN_RANKS || !sane {
            return None;
        }
        let (mut groups, mut weights, mut first) = (Vec::new(), Vec::new(), 0);
        while first < count {
            let size = if first < SINGLE_RANKS { 1 } else { (first / GROUP_DIVISOR).min(count - first) };
            let accept_below = ((first + size) as f64 / (first + 1) as f64).powf(-exponent);
            groups.push(RankGroup { first, count: size, accept_below, own: 0, other: 0 });
            weights.push(group_weight(first, size, exponent));
            first += size;
        }
        build_alias_table(&mut groups, &weights);
        Some(ZipfTable { groups: groups.into(), exponent })
    }

    /// The next rank.
    #[inline]
    pub(super) fn next(&self, rng: &mut impl RngCore) -> u64 {
        let drawn = rng.next_u64();
        let slot = (((drawn >> 32) * self.groups.len() as u64) >> 32) as usize;
        let Some(mut group) = self.groups.get(slot) else { return 0 };
        if drawn & 0xFFFF_FFFF >= group.own {
            group = self.groups.get(group.other as usize).unwrap_or(group);
        }
        if group.count == 1 {
            return group.first;
        }
        loop {
            let rank = group.first + rng.random_range(0..group.count);
            let chance: f64 = rng.random();
            if chance < group.accept_below
                || chance < ((rank + 1) as f64 / (group.first + 1) as f64).powf(-self.exponent)
            {
                return rank;
            }
        }
    }
}

/// Makes slots of equal size: a group with too much weight fills up the slot of one with too little.
fn build_alias_table(groups: &mut [RankGroup], weights: &[f64]) {
    const WHOLE: f64 = 4_294_967_296.0;
    let mean = weights.iter().sum::<f64>() / weights.len() as f64;
    let mut parts: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
    let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..parts.len()).partition(|index| parts[*index] < 1.0);
    while let Some(one) = small.pop() {
        let Some(other) = large.last().copied() else {
            // The missing part was lost in rounding.
            groups[one].own = WHOLE as u64;
            continue;
        };
        (groups[one].own, groups[one].other) = ((parts[one] * WHOLE) as u64, other as u32);
        parts[other] -= 1.0 - parts[one];
        if parts[other] < 1.0 {
            large.pop();
            small.push(other);
        }
    }
    large.iter().for_each(|index| groups[*index].own = WHOLE as u64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::SmallRng};

    #[test]
    fn weights_of_groups_are_the_sums_over_their_ranks() {
        for exponent in [0.3, 0.99, 1.0, 1.7] {
            for (first, count) in [(SINGLE_RANKS, 2), (100, 3), (10_000, 312), (500_000, 15_625)] {
                let sum: f64 = (first..first + count).map(|rank| ((rank + 1) as f64).powf(-exponent)).sum();
                let off = group_weight(first, count, exponent) / sum - 1.0;
                assert!(off.abs() < 1e-7, "{exponent}: {first} and {count} behind it: {off:e} off");
            }
        }
    }

    #[test]
    fn every_thousandth_rank_and_the_first_ones_are_drawn_as_often_as_the_law_says() {
        const COUNT: u64 = 20_000;
        const DRAWS: usize = 2_000_000;
        for exponent in [0.99, 1.0, 1.5] {
            let ranks = ZipfTable::new(COUNT, exponent).unwrap();
            let mut rng = SmallRng::seed_from_u64(11);
            // Bounds within groups and between them.
            let bounds = [1u64, 2, 10, 64, 65, 66, 100, 1_000, 5_000, 19_999];
            let mut below = [0usize; 10];
            for _ in 0..DRAWS {
                let rank = ranks.next(&mut rng);
                assert!(rank < COUNT);
                bounds.iter().zip(&mut below).for_each(|(bound, count)| *count += usize::from(rank < *bound));
            }
            let all: f64 = (1..=COUNT).map(|rank| (rank as f64).powf(-exponent)).sum();
            for (bound, count) in bounds.iter().zip(below) {
                let share = (1..=*bound).map(|rank| (rank as f64).powf(-exponent)).sum::<f64>() / all;
                let deviation = (DRAWS as f64 * share * (1.0 - share)).sqrt().max(1.0);
                let off = (count as f64 - DRAWS as f64 * share) / deviation;
                assert!(off.abs() < 5.0, "exponent {exponent}, below {bound}: {off} standard deviations off");
            }
        }
    }
}
