//! A layer of the history: periods of one length, a bounded number of them, perhaps in files.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io;
use std::path::Path;

use hashbrown::HashMap;

use super::period::{HistoryPeriod, HistoryRow};
use crate::json_lines::JsonLineFiles;
use crate::limits::{HISTORY_LINE_BYTES, HISTORY_TENANTS};

/// A layer: see the head of this file.
#[derive(Debug)]
pub(super) struct HistoryLayer {
    length_ms: u64,
    most: usize,
    periods: VecDeque<HistoryPeriod>,
    /// What was used since the period began.
    current: HashMap<u32, HistoryRow>,
    begun_ms: u64,
    files: Option<JsonLineFiles<HistoryPeriod>>,
}

impl HistoryLayer {
    pub(super) fn new(length_ms: u64, most: usize) -> HistoryLayer {
        let (periods, current) = (VecDeque::new(), HashMap::new());
        HistoryLayer { length_ms, most, periods, current, begun_ms: 0, files: None }
    }

    /// Reads what is kept in a folder, and keeps periods there from now on.
    ///
    /// # Errors
    /// A file cannot be read, or not be written.
    pub(super) fn keep_in(&mut self, folder: &Path, name: &str) -> io::Result<()> {
        let (files, mut periods) = JsonLineFiles::open(folder, name, self.most, HISTORY_LINE_BYTES)?;
        let surplus = periods.len().saturating_sub(self.most);
        self.periods = periods.split_off(surplus).into();
        self.files = Some(files);
        Ok(())
    }

    /// Adds what tenants used until now. Ends the period if it is over.
    pub(super) fn add(&mut self, rows: &HashMap<u32, HistoryRow>, now_ms: u64) {
        // The clock was set back, or this is the first time.
        if self.begun_ms == 0 || now_ms < self.begun_ms {
            self.begun_ms = now_ms.saturating_sub(1_000);
        }
        for (tenant, row) in rows.iter().filter(|(_, row)| !row.is_quiet()) {
            match self.current.get_mut(tenant) {
                Some(sum) if sum.tenant == row.tenant => sum.add(row),
                _ => drop(self.current.insert(*tenant, row.clone())),
            }
        }
        if now_ms - self.begun_ms >= self.length_ms {
            let rows = std::mem::take(&mut self.current);
            self.push(HistoryPeriod { at_ms: now_ms, length_ms: now_ms - self.begun_ms, rows: with_total(rows) });
            self.begun_ms = now_ms;
        }
    }

    /// Ends the period before its time: the server stops.
    pub(super) fn end(&mut self, now_ms: u64) {
        if self.begun_ms > 0 && now_ms > self.begun_ms {
            let rows = std::mem::take(&mut self.current);
            self.push(HistoryPeriod { at_ms: now_ms, length_ms: now_ms - self.begun_ms, rows: with_total(rows) });
            self.begun_ms = now_ms;
        }
    }

    /// Adds what earlier runs of the server did not have the time to: periods of the sum of shorter ones that began
    /// after the last one had ended.
    pub(super) fn fill_from(&mut self, shorter: &HistoryLayer) {
        let last_ms = self.periods.back().map_or(0, |period| period.at_ms);
        let mut together: Vec<&HistoryPeriod> = Vec::new();
        for period in shorter.periods.iter().filter(|period| begin_of(period) >= last_ms) {
            let is_full = together.first().is_some_and(|first| period.at_ms > begin_of(first) + self.length_ms);
            if is_full {
                self.push(sum_of(&std::mem::take(&mut together)));
            }
            together.push(period);
        }
        if !together.is_empty() {
            self.push(sum_of(&together));
        }
    }

    fn push(&mut self, period: HistoryPeriod) {
        if let Some(files) = &mut self.files {
            files.append(&period);
        }
        if self.periods.len() >= self.most {
            self.periods.pop_front();
        }
        self.periods.push_back(period);
    }

    /// The periods that ended after `since_ms`, oldest first, at most the latest `limit`.
    pub(super) fn since(&self, since_ms: u64, limit: usize) -> impl Iterator<Item = &HistoryPeriod> {
        let found = self.periods.iter().filter(|period| period.at_ms > since_ms).count();
        self.periods.iter().filter(move |period| period.at_ms > since_ms).skip(found.saturating_sub(limit))
    }
}

/// The row of the whole server, and those of the tenants that used most of it.
fn with_total(rows: HashMap<u32, HistoryRow>) -> Vec<HistoryRow> {
    let mut total = HistoryRow::default();
    rows.values().for_each(|row| total.add(&HistoryRow { memory_bytes: 0, ..row.clone() }));
    total.memory_bytes = rows.values().map(|row| row.memory_bytes).sum();
    with_chosen(total, rows)
}

fn begin_of(period: &HistoryPeriod) -> u64 {
    period.at_ms.saturating_sub(period.length_ms)
}

/// The sum of periods, oldest first.
fn sum_of(periods: &[&HistoryPeriod]) -> HistoryPeriod {
    let (mut total, mut rows) = (HistoryRow::default(), HashMap::new());
    for row in periods.iter().flat_map(|period| &period.rows) {
        match rows.get_mut(&row.tenant_id) {
            _ if row.tenant.is_none() => total.add(row),
            Some(sum) if HistoryRow::is_of(sum, row) => sum.add(row),
            _ => drop(rows.insert(row.tenant_id, row.clone())),
        }
    }
    let at_ms = periods.last().map_or(0, |last| last.at_ms);
    let begun_ms = periods.first().map_or(at_ms, |first| begin_of(first));
    HistoryPeriod { at_ms, length_ms: at_ms.saturating_sub(begun_ms), rows: with_chosen(total, rows) }
}

/// The row of the whole server, and those of the tenants that used most.
fn with_chosen(total: HistoryRow, rows: HashMap<u32, HistoryRow>) -> Vec<HistoryRow> {
    let chosen = choose(&rows);
    let mut rows: Vec<HistoryRow> =
        rows.into_iter().filter(|(id, _)| chosen.contains(id)).map(|(_, row)| row).collect();
    rows.sort_by_key(|row| (Reverse(row.cpu_us), Reverse(row.requests), row.tenant_id));
    std::iter::once(total).chain(rows).collect()
}

/// By what rows are sorted.
type RowOrder = fn(&HistoryRow) -> u64;

/// The ids of the tenants that used most: half of them by CPU time, the others by requests, kills, and what was refused
/// or dropped.
pub(super) fn choose(rows: &HashMap<u32, HistoryRow>) -> Vec<u32> {
    let orders: [(usize, RowOrder); 4] = [
        (HISTORY_TENANTS / 2, |row| row.cpu_us),
        (HISTORY_TENANTS / 4, |row| row.requests),
        (HISTORY_TENANTS / 8, |row| row.killed),
        (HISTORY_TENANTS / 8, |row| row.over_quota + row.throttled_per_mille),
    ];
    let mut chosen: Vec<u32> = Vec::with_capacity(HISTORY_TENANTS);
    for (places, value) in orders {
        let mut left: Vec<(u64, u32)> = rows
            .iter()
            .map(|(id, row)| (value(row), *id))
            .filter(|(value, id)| *value > 0 && !chosen.contains(id))
            .collect();
        left.sort_unstable_by_key(|(value, id)| (Reverse(*value), *id));
        chosen.extend(left.into_iter().take(places).map(|(_, id)| id));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: u32, cpu_us: u64) -> HistoryRow {
        HistoryRow { tenant: Some(format!("t{id}")), tenant_id: id, cpu_us, requests: 1, ..HistoryRow::default() }
    }

    #[test]
    fn memory_is_bounded_and_periods_have_the_sum_of_what_was_used() {
        let mut layer = HistoryLayer::new(60_000, 5);
        let rows: HashMap<u32, HistoryRow> = (1..=200).map(|id| (id, row(id, u64::from(id)))).collect();
        for second in 1..=10 * 60 {
            layer.add(&rows, 1_000_000 + second * 1_000);
        }
        let periods: Vec<_> = layer.since(0, usize::MAX).collect();
        assert_eq!(periods.len(), 5);
        for period in &periods {
            assert_eq!((period.length_ms, period.rows.len()), (60_000, 1 + HISTORY_TENANTS * 3 / 4), "{period:?}");
            assert_eq!(
                (period.rows[0].tenant.as_deref(), period.rows[0].requests),
                (None, 200 * 60),
                "the whole server"
            );
            assert_eq!((period.rows[1].tenant_id, period.rows[1].cpu_us), (200, 200 * 60), "the busiest");
        }
        assert_eq!(layer.since(0, 2).count(), 2);
        assert_eq!(layer.since(periods[3].at_ms, 9).count(), 1);
    }

    #[test]
    fn a_tenant_that_was_killed_or_throttled_is_chosen_beside_busier_ones() {
        let mut rows: HashMap<u32, HistoryRow> = (1..=200).map(|id| (id, row(id, 1_000))).collect();
        rows.insert(300, HistoryRow { killed: 1, ..row(300, 0) });
        rows.insert(301, HistoryRow { throttled_per_mille: 5, ..row(301, 0) });
        let chosen = choose(&rows);
        assert!(chosen.contains(&300) && chosen.contains(&301) && chosen.len() <= HISTORY_TENANTS, "{chosen:?}");
    }

    #[test]
    fn a_clock_that_is_set_back_or_a_tenant_made_anew_mixes_nothing_up() {
        let mut layer = HistoryLayer::new(2_000, 9);
        let one = |name: &str| HashMap::from([(1, HistoryRow { tenant: Some(name.to_owned()), ..row(1, 7) })]);
        layer.add(&one("old"), 50_000);
        layer.add(&one("new"), 20_000);
        layer.add(&one("new"), 21_000);
        let periods: Vec<_> = layer.since(0, 9).collect();
        assert_eq!(periods.len(), 1);
        assert_eq!((periods[0].rows[1].tenant.as_deref(), periods[0].rows[1].cpu_us), (Some("new"), 14));
        assert_eq!(periods[0].length_ms, 2_000);
    }

    #[test]
    fn a_long_period_that_a_restart_has_cut_off_is_the_sum_of_the_short_ones() {
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let (mut short, mut long) = (HistoryLayer::new(1_000, 100), HistoryLayer::new(10_000, 100));
            short.keep_in(folder.path(), "minutes").unwrap();
            long.keep_in(folder.path(), "hours").unwrap();
            long.fill_from(&short);
            (short, long)
        };
        let shown = |layer: &HistoryLayer| {
            let row = |one: &HistoryPeriod| (one.at_ms, one.length_ms, one.rows[0].requests, one.rows.len());
            layer.since(0, 99).map(row).collect::<Vec<_>>()
        };
        // The second run comes after a pause, and the third finds that the first one has left a long period whole.
        for (from_ms, seconds) in [(100_000, 14), (200_000, 7)] {
            let (mut short, mut long) = open();
            for second in 1..=seconds {
                let rows = HashMap::from([(1, row(1, 5)), (2, row(2, second))]);
                [&mut short, &mut long].iter_mut().for_each(|layer| layer.add(&rows, from_ms + second * 1_000));
            }
            short.end(from_ms + seconds * 1_000 + 300);
        }
        let (short, long) = open();
        let expected = [(110_000, 10_000, 20, 3), (114_300, 4_300, 8, 3), (207_300, 7_300, 14, 3)];
        assert_eq!(shown(&long), expected, "{:?}", shown(&short));
        let last = long.since(0, 99).last().unwrap();
        let used: Vec<_> = last.rows.iter().map(|row| (row.tenant.as_deref(), row.cpu_us)).collect();
        assert_eq!(used, [(None, 7 * 5 + 28), (Some("t1"), 7 * 5), (Some("t2"), 28)]);
        drop(long);
        assert_eq!(shown(&open().1), expected, "no start adds it again");
    }

    #[test]
    fn what_is_kept_is_there_after_a_restart_as_far_as_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let mut layer = HistoryLayer::new(1_000, 4);
            layer.keep_in(folder.path(), "minutes").unwrap();
            layer
        };
        let mut layer = open();
        for second in 1..=9 {
            layer.add(&HashMap::from([(1, row(1, second))]), 10_000 + second * 1_000);
        }
        let before: Vec<HistoryPeriod> = layer.since(0, 9).cloned().collect();
        drop(layer);
        let file = folder.path().join("minutes.jsonl");
        let mut text = std::fs::read_to_string(&file).unwrap();
        text.push_str("{\"at_ms\": 5, \"cut");
        std::fs::write(&file, text).unwrap();
        let mut again = open();
        assert_eq!(again.since(0, 9).cloned().collect::<Vec<_>>(), before);
        again.add(&HashMap::from([(1, row(1, 77))]), 30_000);
        drop(again);
        assert_eq!(open().since(0, 9).last().map(|last| last.rows[1].cpu_us), Some(77), "and it goes on");
    }
}
