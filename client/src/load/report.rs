//! The results of a run, for people and as JSON.

use super::Class;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Highest recorded latency, in nanoseconds: two minutes, twice the longest deadline.
const MAX_LATENCY_NS: u64 = 120_000_000_000;

/// The text of [`crate::Error::code`] for a request that came while the server was shutting down.
pub(super) const SHUTTING_DOWN: &str = "shutting_down";
/// The same for a key whose slot no server owned in time.
pub(super) const WRONG_SERVER: &str = "wrong_server";
/// Ends of operations that the server has said nothing to.
const UNANSWERED: [&str; 2] = ["timeout", "unsent"];

/// Significant digits of latencies.
pub(super) const FINE_DIGITS: u8 = 3;
/// The same where there are too many tenants to give each a fine histogram.
pub(super) const COARSE_DIGITS: u8 = 2;

/// A histogram of latencies in nanoseconds, to three digits.
pub(super) fn latency_histogram() -> Histogram<u64> {
    latency_histogram_with_digits(FINE_DIGITS)
}

/// The same to two digits, which takes far less memory.
pub(super) fn coarse_latency_histogram() -> Histogram<u64> {
    latency_histogram_with_digits(COARSE_DIGITS)
}

/// A histogram of latencies in nanoseconds, to so many digits (at most 5).
fn latency_histogram_with_digits(digits: u8) -> Histogram<u64> {
    // The bounds are constants that the library accepts; a plain histogram is the same, only larger.
    Histogram::new_with_bounds(1, MAX_LATENCY_NS, digits).unwrap_or_else(|_| Histogram::new_from(&empty()))
}

fn empty() -> Histogram<u64> {
    match Histogram::new(3) {
        Ok(histogram) => histogram,
        Err(_) => unreachable!("three significant digits are within the library's range of 0 to 5"),
    }
}

/// Results of the operations of one class.
#[derive(Clone, Debug)]
pub(super) struct ClassTally {
    /// Until the kernel received the answer.
    pub(super) latency_ns: Histogram<u64>,
    /// Until the generator looked at it.
    pub(super) seen_ns: Histogram<u64>,
    pub(super) ok: u64,
    pub(super) missed: u64,
    pub(super) verified: u64,
    pub(super) wrong: u64,
    pub(super) errors: BTreeMap<&'static str, u64>,
    /// The time of the last successful answer, in nanoseconds since the run's start.
    pub(super) last_ns: u64,
}

impl ClassTally {
    pub(super) fn new(digits: u8) -> ClassTally {
        ClassTally {
            latency_ns: latency_histogram_with_digits(digits),
            seen_ns: coarse_latency_histogram(),
            ok: 0,
            missed: 0,
            verified: 0,
            wrong: 0,
            errors: BTreeMap::new(),
            last_ns: 0,
        }
    }

    pub(super) fn add(&mut self, other: &ClassTally) {
        // Both have the same bounds: nothing can be out of range.
        let added = [self.latency_ns.add(&other.latency_ns), self.seen_ns.add(&other.seen_ns)];
        debug_assert!(added.iter().all(Result::is_ok));
        self.ok += other.ok;
        self.missed += other.missed;
        self.verified += other.verified;
        self.wrong += other.wrong;
        self.last_ns = self.last_ns.max(other.last_ns);
        for (code, count) in &other.errors {
            *self.errors.entry(code).or_default() += count;
        }
    }

    fn unanswered(&self) -> u64 {
        UNANSWERED.iter().filter_map(|code| self.errors.get(code)).sum()
    }

    pub(super) fn row(&self, class: Class, seconds: f64) -> ClassReport {
        let quantile = |quantile| self.latency_ns.value_at_quantile(quantile) as f64 / 1000.0;
        let seen = |quantile| self.seen_ns.value_at_quantile(quantile) as f64 / 1000.0;
        ClassReport {
            class,
            count: self.latency_ns.len(),
            ok: self.ok,
            per_s: (self.latency_ns.len() - self.unanswered()) as f64 / seconds,
            errors: self.errors.iter().map(|(code, count)| ((*code).to_owned(), *count)).collect(),
            missed: self.missed,
            verified: self.verified,
            wrong: self.wrong,
            mean_us: self.latency_ns.mean() / 1000.0,
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: self.latency_ns.max() as f64 / 1000.0,
            seen_p50_us: seen(0.5),
            seen_p99_us: seen(0.99),
            seen_p999_us: seen(0.999),
        }
    }
}

/// A class of operations of one tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassReport {
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
    /// The part of these that found no record.
    #[serde(default)]
    pub missed: u64,
    /// Replies that were checked.
    pub verified: u64,
    /// Replies that were wrong; anything but 0 is a defect of the server (or the table was filled otherwise).
    pub wrong: u64,
    /// Mean latency, microseconds, until the kernel received the answer, if it says when that was. As all below, of all
    /// operations, errors included.
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
    /// Median until the generator looked at the answer, whose own waiting is among it; two digits, as those below.
    #[serde(default)]
    pub seen_p50_us: f64,
    /// 99th percentile of the same.
    #[serde(default)]
    pub seen_p99_us: f64,
    /// 99.9th percentile of the same.
    #[serde(default)]
    pub seen_p999_us: f64,
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
    /// Median latency of all its operations, errors included, microseconds.
    #[serde(default)]
    pub p50_us: f64,
    /// 99th percentile of the same.
    #[serde(default)]
    pub p99_us: f64,
    /// 99.9th percentile of the same.
    #[serde(default)]
    pub p999_us: f64,
    /// Packets sent again.
    pub retransmissions: u64,
    /// By class.
    pub rows: Vec<ClassReport>,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Seconds that counted.
    pub seconds: f64,
    /// Operations answered in a second, all tenants.
    pub per_s: f64,
    /// Wrong replies, all tenants.
    pub wrong: u64,
    /// By class, over all tenants.
    pub classes: Vec<ClassReport>,
    /// By tenant.
    pub tenants: Vec<TenantReport>,
    /// CPU time of the threads that sent, in seconds, from the first request to the last answer, warm-up included.
    #[serde(default)]
    pub sender_cpu_s: f64,
}

impl Report {
    /// The row of a tenant's class, if it has one.
    pub fn row(&self, tenant: &str, class: Class) -> Option<&ClassReport> {
        self.tenants.iter().find(|one| one.name == tenant)?.rows.iter().find(|row| row.class == class)
    }

    /// Operations of all tenants.
    pub fn count(&self) -> u64 {
        self.classes.iter().map(|row| row.count).sum()
    }

    /// The part of these to which no answer came in time, or that could not be sent before the end.
    pub fn unanswered(&self) -> u64 {
        UNANSWERED.iter().map(|code| self.errors(code)).sum()
    }

    /// Returns whether the server said that it was shutting down, which ended the run.
    pub fn server_stopped(&self) -> bool {
        self.errors(SHUTTING_DOWN) > 0
    }

    /// Operations that ended so.
    fn errors(&self, code: &str) -> u64 {
        self.classes.iter().filter_map(|row| row.errors.get(code)).sum()
    }
}

impl ClassReport {
    /// The head of a table of rows.
    fn write_head(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["class", "count", "per s", "mean us", "p50", "p90", "p99", "p99.9", "max", "p99 seen", "errors"];
        let [class, count, rate, mean, p50, p90, p99, p999, max, seen, errors] = head;
        writeln!(
            f,
            "  {class:<17} {count:>10} {rate:>10} {mean:>9} {p50:>9} {p90:>9} {p99:>9} {p999:>9} {max:>10} {seen:>9}  {errors}"
        )
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClassReport { count, per_s, mean_us, p50_us, p90_us, p99_us, p999_us, max_us, seen_p99_us, .. } = self;
        let errors: Vec<String> = self.errors.iter().map(|(code, count)| format!("{code} {count}")).collect();
        let errors = if errors.is_empty() { "-".to_owned() } else { errors.join(", ") };
        writeln!(
            f,
            "  {:<17} {count:>10} {per_s:>10.0} {mean_us:>9.1} {p50_us:>9.1} {p90_us:>9.1} {p99_us:>9.1} \
             {p999_us:>9.1} {max_us:>10.1} {seen_p99_us:>9.1}  {errors}",
            self.class.name()
        )
    }
}

impl TenantReport {
    /// Its slowest class' 99th percentile, microseconds.
    fn p99_us(&self) -> f64 {
        self.rows.iter().map(|row| row.p99_us).fold(0.0, f64::max)
    }
}

/// More tenants than this are summed up in two lines; each stands in the JSON.
const MAX_DETAILED_TENANTS: usize = 8;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:.0} operations/s over {:.1} s", self.per_s, self.seconds)?;
        if self.tenants.len() > 1 {
            writeln!(f, "\nall {} tenants", self.tenants.len())?;
            ClassReport::write_head(f)?;
            self.classes.iter().try_for_each(|row| row.write(f))?;
        }
        if self.tenants.len() > MAX_DETAILED_TENANTS {
            self.write_spread(f)?;
        } else {
            for tenant in &self.tenants {
                let TenantReport { name, mix, pace, skew, batch, per_s, retransmissions, rows, .. } = tenant;
                writeln!(
                    f,
                    "\n{name}: {mix}, {pace}, {batch} a message, keys {skew}: {per_s:.0}/s, {retransmissions} resent"
                )?;
                ClassReport::write_head(f)?;
                rows.iter().try_for_each(|row| row.write(f))?;
            }
        }
        let verified: u64 = self.classes.iter().map(|row| row.verified).sum();
        write!(f, "\n{verified} replies checked, {} wrong", self.wrong)
    }
}

impl Report {
    /// Writes the spread between the tenants.
    fn write_spread(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spread = |of: fn(&TenantReport) -> f64| {
            let mut values: Vec<f64> = self.tenants.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            let at = |index: usize| values.get(index).copied().unwrap_or_default();
            [at(0), at(values.len() / 2), at(values.len().saturating_sub(1))]
        };
        let [least, median, most] = spread(|tenant| tenant.per_s);
        writeln!(f, "\noperations/s of a tenant: least {least:.0}, median {median:.0}, most {most:.0}")?;
        let [least, median, most] = spread(TenantReport::p99_us);
        writeln!(f, "p99 of a tenant, us: least {least:.1}, median {median:.1}, most {most:.1}")
    }
}
