//! Rules about what tenants do to each other, and to themselves.

use super::listing::{finding, worst};
use super::reading::{HotTableKey, LiveReading, TenantPressure};
use crate::admin::finding::FindingSeverity::Mind;
use crate::admin::finding::ServerFinding;
use crate::limits::{HOT_KEY_PER_S, HOT_KEY_PERCENT};
use sandstorm_metrics::histogram::REQUEST_CLASSES;

/// Requests that take so many times as long beside neighbours, in thousandths, are worth a word …
const LONGER_PER_MILLE: u64 = 3_000;
/// … if that is so long: of less no client knows it from its network.
const LONG_NS: u64 = 1_000_000;
/// A tenant that uses more of a thousand parts of what its workers do is not slowed down by others but by itself.
const MOST_PER_MILLE: u64 = 500;

/// Tenants whose requests take much longer while others use their worker.
pub(super) fn neighbours(reading: &LiveReading) -> Vec<ServerFinding> {
    let of = |tenant: &TenantPressure| {
        let (name, home, beside) = (&tenant.name, tenant.home_worker, tenant.isolation.as_ref()?);
        if beside.per_mille() < LONGER_PER_MILLE || beside.beside_p99_ns < LONG_NS {
            return None;
        }
        if beside.own_per_mille > MOST_PER_MILLE {
            return None;
        }
        let times = beside.per_mille() as f64 / 1e3;
        let kind = REQUEST_CLASSES.get(beside.class).copied().unwrap_or("unknown");
        let ms = |ns: u64| ns as f64 / 1e6;
        let text = format!(
            "99 of 100 requests of {name} ({kind}) take up to {:.2} ms while others use worker {home}, {times:.1} \
             times as long as without them ({:.2} ms).",
            ms(beside.beside_p99_ns),
            ms(beside.quiet_p99_ns)
        );
        let moved = match reading.busy.len() {
            0 | 1 => String::new(),
            _ => format!(", or move one of the two: `sandstorm tenant set {name} --home NUMBER`"),
        };
        let advice = format!(
            "`sandstorm top --sort requests_per_s` shows which tenant sends most, `--sort cpu_percent` whose calls \
             compute most: bound it (weight, requests_per_s){moved}."
        );
        Some((times, finding("tenant_beside_neighbours", Mind, "Neighbours slow a tenant down.", text, advice)))
    };
    worst(reading.tenants.iter().filter_map(of).collect())
}

/// Keys that take a large part of a busy table's accesses.
pub(super) fn hot_keys(reading: &LiveReading) -> Vec<ServerFinding> {
    let of = |key: &HotTableKey| {
        let HotTableKey { tenant, table, key_digest, share, per_s } = key;
        let percent = 100.0 * share;
        if percent < HOT_KEY_PERCENT || *per_s < HOT_KEY_PER_S {
            return None;
        }
        let text = format!(
            "One key of table {table} of tenant {tenant} takes {percent:.0} % of its requests, {per_s:.0} a second \
             (#{key_digest})."
        );
        let advice = format!(
            "`sandstorm hot --tenant {tenant}` with the tenant's token shows the key; have its clients keep it for a \
             while, or divide it."
        );
        Some((*per_s, finding("hot_key", Mind, "One key of a table is hot.", text, advice)))
    };
    worst(reading.hot_keys.iter().filter_map(of).collect())
}
