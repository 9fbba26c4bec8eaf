//! `sandstorm bench table`: the table alone, in this process. It times single gets and puts just after the table has
//! grown and just before it grows.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use sandstorm_store::{Epochs, Participant, RecordTable, TableConfig, WriteOptions};

use super::BenchArgs;
use super::report::{
    AxisScale, ExperimentFindings, LinePlot, PlotAxis, PlotPoint, PlotSeries, ReportTable, RoundSpread,
};
use sandstorm_terminal::output::CliError;

const KEY_BYTES: usize = 30;
const VALUE: [u8; 100] = [7; 100];
/// Gets and puts that are timed of each kind in each round.
const SAMPLES: u64 = 100_000;
const ROUNDS: usize = 3;
/// The quantiles that the plot shows.
const SHARES: [f64; 12] = [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999];
/// Seed of the keys' hashes: two tables that are filled alike grow at the same record.
const SEED: u64 = 1;
/// Puts between two quiescent points, at which replaced records can be freed.
const QUIESCENT_EVERY: u64 = 16;

/// A table, filled to a point between two growths.
struct FilledTable {
    table: RecordTable,
    participant: Participant,
    records: u64,
    shuffle: u64,
}

fn key_of(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [b'k'; KEY_BYTES];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key
}

fn put(table: &RecordTable, participant: &Participant, number: u64) -> Result<(), CliError> {
    let key = key_of(number);
    let put = table.put(participant, table.hash(&key), &key, &VALUE, &WriteOptions::default(), 0);
    put.map(drop).map_err(|error| CliError::new(format!("put: {error:?}")))
}

impl FilledTable {
    /// Puts records until the table holds at least so many and its last growth is over.
    fn just_grown(records: u64) -> Result<FilledTable, CliError> {
        let epochs = Epochs::new();
        let table = RecordTable::with_seed(TableConfig::default(), Arc::clone(&epochs), SEED);
        let mut filled = FilledTable { participant: epochs.register(), table, records: 0, shuffle: 1 };
        while filled.records < records {
            filled.add()?;
        }
        let capacity = filled.table.stats().capacity;
        while filled.table.stats().capacity == capacity || filled.is_growing() {
            filled.add()?;
        }
        Ok(filled)
    }

    /// As [`Self::just_grown`], filled on until the next record would make it grow. The limit shows only when a table
    /// grows, so a second table is filled to just before that.
    fn about_to_grow(records: u64) -> Result<FilledTable, CliError> {
        let mut first = FilledTable::just_grown(records)?;
        let capacity = first.table.stats().capacity;
        while first.table.stats().capacity == capacity && !first.is_growing() {
            first.add()?;
        }
        let full = first.records.saturating_sub(1);
        drop(first);
        let mut filled = FilledTable::just_grown(records)?;
        while filled.records < full {
            filled.add()?;
        }
        Ok(filled)
    }

    fn is_growing(&self) -> bool {
        self.table.is_growing(&self.participant.guard())
    }

    fn add(&mut self) -> Result<(), CliError> {
        put(&self.table, &self.participant, self.records)?;
        self.records += 1;
        if self.records.is_multiple_of(QUIESCENT_EVERY) {
            self.participant.quiescent();
        }
        Ok(())
    }

    fn draw(&mut self) -> u64 {
        self.shuffle = self.shuffle.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.shuffle ^ self.shuffle >> 29) * u128::from(self.records)) >> 64) as u64
    }

    /// Times gets, or puts over existing records, one by one. Returns sorted nanoseconds without the clock's own time.
    fn time(&mut self, puts: bool, clock_ns: u64) -> Result<Vec<u64>, CliError> {
        let mut took_ns = Vec::with_capacity(SAMPLES as usize);
        for number in 0..SAMPLES {
            let drawn = self.draw();
            let begun;
            if puts {
                begun = Instant::now();
                put(&self.table, &self.participant, drawn)?;
            } else {
                let key = key_of(drawn);
                let guard = self.participant.guard();
                begun = Instant::now();
                black_box(self.table.get(&guard, self.table.hash(&key), &key, 0).map(|record| record.value()[0]));
            }
            took_ns.push((begun.elapsed().as_nanos() as u64).saturating_sub(clock_ns));
            if number.is_multiple_of(QUIESCENT_EVERY) {
                self.participant.quiescent();
            }
        }
        took_ns.sort_unstable();
        Ok(took_ns)
    }
}

/// Nanoseconds that two readings of the clock take.
fn clock_ns() -> u64 {
    let mut times: Vec<u64> = (0..1_000).map(|_| Instant::now().elapsed().as_nanos() as u64).collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

pub(super) fn table(args: &BenchArgs) -> Result<ExperimentFindings, CliError> {
    let about = "Single gets and puts (over what is there) of uniformly drawn records, in this process, without a network: in a table that has \
        just doubled, and in one that is about to. The time that reading the clock takes is taken off.";
    let mut findings = ExperimentFindings::new("table", about);
    // The fuller table holds about the requested number.
    let least = (args.records() / 2).max(1);
    let mut tables =
        [("just doubled", FilledTable::just_grown(least)?), ("about to double", FilledTable::about_to_grow(least)?)];
    let clock_ns = clock_ns();
    let mut kinds: Vec<(String, Vec<Vec<f64>>)> = Vec::new();
    for _ in 0..args.rounds(ROUNDS) {
        for (puts, verb) in [(false, "get"), (true, "put")] {
            for (state, filled) in &mut tables {
                let times = filled.time(puts, clock_ns)?;
                let at =
                    |share: &f64| times.get((times.len() as f64 * share) as usize).map_or(f64::NAN, |ns| *ns as f64);
                let name = format!("{verb}, {state}");
                let round = SHARES.iter().map(at).collect();
                match kinds.iter_mut().find(|(kind, _)| *kind == name) {
                    Some((_, rounds)) => rounds.push(round),
                    None => kinds.push((name, vec![round])),
                }
            }
        }
    }
    let spread = |rounds: &[Vec<f64>], index: usize| RoundSpread::of(rounds.iter().map(|round| round[index]).collect());
    let names = SHARES.map(|share| format!("{} %", share * 100.0));
    let mut rows = ReportTable::new("Nanoseconds within which so many are done", "", names);
    let mut series = Vec::new();
    for (name, rounds) in &kinds {
        let cells: Vec<RoundSpread> = (0..SHARES.len()).map(|index| spread(rounds, index)).collect();
        let points =
            cells.iter().zip(SHARES).map(|(y, share)| PlotPoint { x: 1.0 / (1.0 - share), y: y.clone() }).collect();
        series.push(PlotSeries { name: name.clone(), points });
        rows.row(name, cells);
    }
    findings.tables.push(rows);
    let axis = |name: &str| PlotAxis { name: name.into(), scale: AxisScale::Log };
    let (x, y) = (axis("one in so many takes longer"), axis("ns"));
    findings.plots.push(LinePlot { title: "Distribution of single operations".into(), x, y, series });
    let fill = tables.each_ref().map(|(state, filled)| {
        let stats = filled.table.stats();
        format!("{state}: {} records in {} slots", stats.records, stats.capacity)
    });
    findings.notes.push(format!("{}; {} gets and as many puts of each in each round.", fill.join("; "), SAMPLES));
    Ok(findings)
}
