//! Accesses of a table over key ranges and time, in fixed memory: of each stretch of time a number of keys that are
//! drawn at random from all accesses (a reservoir, Vitter 1985), and the exact number of accesses. The ranges are made
//! of the keys that were drawn, when the watch ends: as many different keys in each, so that a range which is used more
//! than others shows, wherever the keys lie.

use std::collections::BTreeMap;

use crate::limits::{HEAT_KEY_BYTES, HEAT_SAMPLES};

/// The beginning of a key.
type KeyPrefix = ([u8; HEAT_KEY_BYTES], u8);

/// What was accessed in one stretch of time.
#[derive(Debug)]
struct HeatColumn {
    accesses: u64,
    sampled: Vec<KeyPrefix>,
}

/// Samples of one part of a watch.
#[derive(Debug)]
pub(super) struct HeatSampler {
    columns: Vec<HeatColumn>,
    random: u64,
}

/// The accesses of one range of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeatRange {
    /// The beginnings of the least and of the largest key that were seen in it.
    pub first: Vec<u8>,
    /// See `first`.
    pub last: Vec<u8>,
    /// Accesses in each stretch of time, estimated from the samples.
    pub accesses: Vec<u64>,
}

/// Accesses over key ranges and time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeatReport {
    /// All accesses in each stretch of time.
    pub accesses: Vec<u64>,
    /// Keys that were drawn in each.
    pub sampled: Vec<u64>,
    /// The ranges, in the order of the keys.
    pub ranges: Vec<HeatRange>,
    /// Accesses that were not counted, because another thread was counting.
    pub missed: u64,
}

fn prefix_of(key: &[u8]) -> KeyPrefix {
    let (mut prefix, len) = ([0; HEAT_KEY_BYTES], key.len().min(HEAT_KEY_BYTES));
    prefix[..len].copy_from_slice(&key[..len]);
    (prefix, len as u8)
}

impl HeatSampler {
    /// A sampler of so many stretches of time. All memory is taken now.
    pub(super) fn new(columns: usize, seed: u64) -> HeatSampler {
        let column = |_| HeatColumn { accesses: 0, sampled: Vec::with_capacity(HEAT_SAMPLES) };
        HeatSampler { columns: (0..columns).map(column).collect(), random: seed | 1 }
    }

    /// Counts an access.
    pub(super) fn add(&mut self, column: usize, key: &[u8]) {
        let Some(column) = self.columns.get_mut(column) else { return };
        column.accesses += 1;
        if column.sampled.len() < HEAT_SAMPLES {
            column.sampled.push(prefix_of(key));
            return;
        }
        // Each access so far is kept with the same probability.
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let drawn = (u128::from(self.random) * u128::from(column.accesses)) >> 64;
        if let Some(place) = column.sampled.get_mut(drawn as usize) {
            *place = prefix_of(key);
        }
    }
}

/// The report of a watch's parts, with so many ranges at most.
pub(super) fn heat_report(parts: &[HeatSampler], ranges: usize, missed: u64) -> HeatReport {
    let columns = parts.iter().map(|part| part.columns.len()).max().unwrap_or(0);
    let mut report =
        HeatReport { accesses: vec![0; columns], sampled: vec![0; columns], missed, ..HeatReport::default() };
    // Accesses of each key and stretch of time: a part's samples stand for all of its accesses.
    let mut keys: BTreeMap<&[u8], Vec<f64>> = BTreeMap::new();
    for part in parts {
        for (index, column) in part.columns.iter().enumerate() {
            report.accesses[index] += column.accesses;
            report.sampled[index] += column.sampled.len() as u64;
            let each = column.accesses as f64 / column.sampled.len().max(1) as f64;
            for (prefix, len) in &column.sampled {
                keys.entry(&prefix[..usize::from(*len)]).or_insert_with(|| vec![0.0; columns])[index] += each;
            }
        }
    }
    let ranges = ranges.clamp(1, keys.len().max(1));
    let mut entries = keys.into_iter();
    let total = entries.len();
    for range in 0..ranges {
        let keys_in_range = (range + 1) * total / ranges - range * total / ranges;
        let mut sums = vec![0.0; columns];
        let mut made = HeatRange::default();
        for (nth, (key, counts)) in entries.by_ref().take(keys_in_range).enumerate() {
            if nth == 0 {
                made.first = key.to_vec();
            }
            made.last = key.to_vec();
            sums.iter_mut().zip(&counts).for_each(|(sum, count)| *sum += count);
        }
        if keys_in_range > 0 {
            made.accesses = sums.into_iter().map(|sum| sum.round() as u64).collect();
            report.ranges.push(made);
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_show_where_and_when_a_table_is_hot() {
        let mut parts = [HeatSampler::new(4, 3), HeatSampler::new(4, 9)];
        // 1,000 keys in turn all the time, and in the third stretch 30,000 accesses of one tenth of them.
        for column in 0..4 {
            for number in 0..20_000_u32 {
                let key = format!("user:{:04}", number % 1_000);
                parts[number as usize % 2].add(column, key.as_bytes());
            }
            for number in 0..if column == 2 { 30_000_u32 } else { 0 } {
                let key = format!("user:{:04}", 500 + number % 100);
                parts[number as usize % 2].add(column, key.as_bytes());
            }
        }
        let report = heat_report(&parts, 10, 7);
        assert_eq!((report.accesses.clone(), report.missed), (vec![20_000, 20_000, 50_000, 20_000], 7));
        assert_eq!(report.ranges.len(), 10);
        let sum = |column: usize| report.ranges.iter().map(|range| range.accesses[column]).sum::<u64>();
        assert!((0..4).all(|column| sum(column).abs_diff(report.accesses[column]) < 10), "{report:?}");
        let keys: Vec<&Vec<u8>> = report.ranges.iter().flat_map(|range| [&range.first, &range.last]).collect();
        assert!(keys.is_sorted(), "ranges are in order and do not overlap");
        for range in &report.ranges {
            let is_hot = range.first < b"user:0600".to_vec() && range.last >= b"user:0500".to_vec();
            let (hot, calm) = (range.accesses[2], range.accesses[0]);
            // As many keys as were drawn in each: of the hot part more are drawn, so its ranges are narrower.
            assert!(calm > 300 && calm < 4_500, "{range:?}");
            assert!(is_hot || hot < 4_000, "nothing else is hot: {range:?}");
        }
        let hottest = report.ranges.iter().map(|range| range.accesses[2]).max();
        assert!(hottest.is_some_and(|hottest| hottest > 9_000), "{report:?}");
    }

    #[test]
    fn few_keys_and_none_make_few_ranges() {
        let mut part = HeatSampler::new(2, 1);
        assert_eq!(heat_report(&[], 8, 0), HeatReport::default());
        assert_eq!(heat_report(std::slice::from_ref(&part), 8, 0).ranges, []);
        part.add(0, b"b");
        part.add(1, b"a");
        part.add(1, &[7; 200]);
        part.add(9, b"outside of the time");
        let report = heat_report(&[part], 8, 0);
        let ranges: Vec<_> = report.ranges.iter().map(|range| (range.first.len(), range.accesses.clone())).collect();
        assert_eq!(ranges, [(HEAT_KEY_BYTES, vec![0, 1]), (1, vec![0, 1]), (1, vec![1, 0])]);
    }
}
