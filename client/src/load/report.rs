//! What a run found, for people and as JSON.

use super::Class;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Highest latency told apart, in nanoseconds: two minutes, twice the longest deadline.
const MAX_LATENCY_NS: u64 = 120_000_000_000;

/// A histogram of latencies in nanoseconds, to three digits.
pub(super) fn histogram() -> Histogram<u64> {
    // The bounds are constants that the library accepts; a plain histogram is the same, only larger.
    Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3).unwrap_or_else(|_| Histogram::new_from(&empty()))
}

fn empty() -> Histogram<u64> {
    match Histogram::new(3) {
        Ok(histogram) => histogram,
        Err(_) => unreachable!("three significant digits are within the library's range of 0 to 5"),
    }
}

/// What came of the operations of one class.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    pub(super) latency_ns: Histogram<u64>,
    pub(super) ok: u64,
    pub(super) verified: u64,
    pub(super) wrong: u64,
    pub(super) errors: BTreeMap<&'static str, u64>,
    /// When the last of them was answered with a success, in nanoseconds since the run's start.
    pub(super) last_ns: u64,
}

impl Tally {
    pub(super) fn new() -> Tally {
        Tally { latency_ns: histogram(), ok: 0, verified: 0, wrong: 0, errors: BTreeMap::new(), last_ns: 0 }
    }

    pub(super) fn add(&mut self, other: &Tally) {
        // Both have the same bounds: nothing can be out of range.
        let added = self.latency_ns.add(&other.latency_ns);
        debug_assert!(added.is_ok());
        self.ok += other.ok;
        self.verified += other.verified;
        self.wrong += other.wrong;
        self.last_ns = self.last_ns.max(other.last_ns);
        for (code, count) in &other.errors {
            *self.errors.entry(code).or_default() += count;
        }
    }

    fn unanswered(&self) -> u64 {
        ["timeout", "unsent"].iter().filter_map(|code| self.errors.get(code)).sum()
    }

    pub(super) fn row(&self, class: Class, seconds: f64) -> Row {
        let quantile = |quantile| self.latency_ns.value_at_quantile(quantile) as f64 / 1000.0;
        Row {
            class,
            count: self.latency_ns.len(),
            ok: self.ok,
            per_s: (self.latency_ns.len() - self.unanswered()) as f64 / seconds,
            errors: self.errors.iter().map(|(code, count)| ((*code).to_owned(), *count)).collect(),
            verified: self.verified,
            wrong: self.wrong,
            mean_us: self.latency_ns.mean() / 1000.0,
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: self.latency_ns.max() as f64 / 1000.0,
        }
    }
}

/// A class of operations of one tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The class.
    pub class: Class,
    /// Operations that ended, well or not.
    pub count: u64,
    /// Operations that were answered with a success (or "not found").
    pub ok: u64,
    /// Operations that were answered in a second, well or not.
    pub per_s: f64,
    /// Operations that ended otherwise, by [`crate::Error::code`]; `unsent` never left, for the server was behind.
    pub errors: BTreeMap<String, u64>,
    /// Replies that were checked.
    pub verified: u64,
    /// Replies that were wrong; anything but 0 is a defect of the server (or the table was filled otherwise).
    pub wrong: u64,
    /// Mean latency, microseconds; as all below, of all operations, errors included.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Longest.
    pub max_us: f64,
}

/// One tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TenantReport {
    /// Its name.
    pub name: String,
    /// Its mix.
    pub mix: String,
    /// Its pace.
    pub pace: String,
    /// Its choice of records.
    pub skew: String,
    /// Operations in a message, at most.
    pub batch: usize,
    /// Operations answered in a second, all classes.
    pub per_s: f64,
    /// Packets sent again.
    pub retransmissions: u64,
    /// By class.
    pub rows: Vec<Row>,
}

/// What a run found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Seconds that counted.
    pub seconds: f64,
    /// Operations answered in a second, all tenants.
    pub per_s: f64,
    /// Wrong replies, all tenants.
    pub wrong: u64,
    /// By tenant.
    pub tenants: Vec<TenantReport>,
}

impl Report {
    /// The row of a tenant's class, if it has one.
    pub fn row(&self, tenant: &str, class: Class) -> Option<&Row> {
        self.tenants.iter().find(|one| one.name == tenant)?.rows.iter().find(|row| row.class == class)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:.0} operations/s over {:.1} s", self.per_s, self.seconds)?;
        for tenant in &self.tenants {
            let TenantReport { name, mix, pace, skew, batch, per_s, retransmissions, rows } = tenant;
            writeln!(
                f,
                "\n{name}: {mix}, {pace}, {batch} a message, keys {skew}: {per_s:.0}/s, {retransmissions} resent"
            )?;
            let head = ["class", "count", "per s", "mean us", "p50", "p90", "p99", "p99.9", "max", "errors"];
            let [class, count, rate, mean, p50, p90, p99, p999, max, errors] = head;
            writeln!(
                f,
                "  {class:<14} {count:>10} {rate:>10} {mean:>9} {p50:>9} {p90:>9} {p99:>9} {p999:>9} {max:>10}  {errors}"
            )?;
            for row in rows {
                write!(
                    f,
                    "  {:<14} {:>10} {:>10.0} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>10.1}  ",
                    row.class.name(),
                    row.count,
                    row.per_s,
                    row.mean_us,
                    row.p50_us,
                    row.p90_us,
                    row.p99_us,
                    row.p999_us,
                    row.max_us
                )?;
                let errors: Vec<String> = row.errors.iter().map(|(code, count)| format!("{code} {count}")).collect();
                writeln!(f, "{}", if errors.is_empty() { "-".to_owned() } else { errors.join(", ") })?;
            }
        }
        let verified: u64 = self.tenants.iter().flat_map(|tenant| &tenant.rows).map(|row| row.verified).sum();
        write!(f, "\n{verified} replies checked, {} wrong", self.wrong)
    }
}
