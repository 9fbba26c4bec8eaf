//! The sizes of keys and values in Facebook's pools of memcached, as Atikoglu, Xu, Frachtenberg, Jiang and Paleczny
//! published them ("Workload Analysis of a Large-Scale Key-Value Store", SIGMETRICS'12).
//!
//! For ETC the paper gives fitted distributions: for keys a generalised extreme value one, for values a table up to 14
//! bytes and a generalised Pareto one from there on. For the other pools it gives single sizes with their shares and
//! the size within which 99 % lie. Between such points sizes are spread evenly here.
//!
//! A record's sizes follow from its id, so that a write of it has the length that is expected of a read.

use super::keys::{Skew, mix64};
use std::fmt;
use std::str::FromStr;

/// A pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemcachedPool {
    /// Account status of users: two sizes of keys, values of 2 bytes.
    Usr,
    /// Metadata of application objects.
    App,
    /// Mixed data; the pool that load generators imitate most.
    Etc,
    /// Browser information: four writes to a read.
    Var,
    /// Locations of services.
    Sys,
}

/// Shares of ETC's values of 0, 1, 2 … 14 bytes.
const ETC_SMALL_VALUES: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837, 0.00837, 0.08989,
    0.00092, 0.00326, 0.01980,
];
/// Generalised Pareto distribution of ETC's values from there on: scale in bytes, shape; its location is 0.
const ETC_VALUES: (f64, f64) = (214.476, 0.348_238);
/// Generalised extreme value distribution of ETC's keys: location and scale in bytes, shape.
const ETC_KEYS: (f64, f64, f64) = (30.7984, 8.20449, 0.078_688);
/// memcached's longest key at that time, in bytes.
const MAX_KEY_BYTES: f64 = 250.0;
/// memcached's longest value at that time, in bytes.
const MAX_VALUE_BYTES: f64 = 1_048_576.0;

/// A point of a distribution: up to this fraction, sizes are at most so many bytes; from the point before, evenly.
type QuantilePoint = (f64, f64);

const APP_KEYS: [QuantilePoint; 4] = [(0.0, 31.0), (0.9, 31.0), (0.99, 45.0), (1.0, 64.0)];
/// 30 % of about 270 bytes.
const APP_VALUES: [QuantilePoint; 5] = [(0.0, 16.0), (0.4, 260.0), (0.7, 280.0), (0.99, 450.0), (1.0, 1024.0)];
const VAR_KEYS: [QuantilePoint; 3] = [(0.0, 16.0), (0.99, 30.0), (1.0, 45.0)];
const VAR_VALUES: [QuantilePoint; 3] = [(0.0, 16.0), (0.99, 200.0), (1.0, 512.0)];
const SYS_KEYS: [QuantilePoint; 3] = [(0.0, 16.0), (0.99, 45.0), (1.0, 64.0)];
const SYS_VALUES: [QuantilePoint; 3] = [(0.0, 16.0), (0.99, 640.0), (1.0, 1024.0)];

impl MemcachedPool {
    /// All pools.
    pub const ALL: [MemcachedPool; 5] =
        [MemcachedPool::Usr, MemcachedPool::App, MemcachedPool::Etc, MemcachedPool::Var, MemcachedPool::Sys];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            MemcachedPool::Usr => "usr",
            MemcachedPool::App => "app",
            MemcachedPool::Etc => "etc",
            MemcachedPool::Var => "var",
            MemcachedPool::Sys => "sys",
        }
    }

    /// Share of gets that find a record.
    pub fn hit_ratio(self) -> f64 {
        match self {
            MemcachedPool::Usr => 0.982,
            MemcachedPool::App => 0.929,
            MemcachedPool::Etc => 0.814,
            MemcachedPool::Var => 0.937,
            MemcachedPool::Sys => 0.987,
        }
    }

    /// Returns the skew of requests over keys. For ETC it is published that half of the keys make 1 % of the requests.
    /// A Zipf distribution of this exponent gives that at a million records. For the other pools nothing is published.
    pub fn skew(self) -> Skew {
        match self {
            MemcachedPool::Etc => Skew::Zipf { exponent: 1.2 },
            _ => Skew::default(),
        }
    }

    /// Bytes of record `id`'s key.
    pub fn key_len(self, id: u64) -> usize {
        self.key_quantile(unit_hash(id, 1)).round() as usize
    }

    /// Bytes of record `id`'s value.
    pub fn value_len(self, id: u64) -> usize {
        self.value_quantile(unit_hash(id, 2)).floor() as usize
    }

    /// The size below which this share of keys lies.
    fn key_quantile(self, share: f64) -> f64 {
        match self {
            // The numbers of keys of either size are not published.
            MemcachedPool::Usr => {
                if share < 0.5 {
                    16.0
                } else {
                    21.0
                }
            }
            MemcachedPool::App => interpolate(&APP_KEYS, share),
            MemcachedPool::Var => interpolate(&VAR_KEYS, share),
            MemcachedPool::Sys => interpolate(&SYS_KEYS, share),
            MemcachedPool::Etc => {
                let (location, scale, shape) = ETC_KEYS;
                let key = location + scale / shape * ((-share.ln()).powf(-shape) - 1.0);
                key.clamp(1.0, MAX_KEY_BYTES)
            }
        }
    }

    /// The size below which this share of values lies.
    fn value_quantile(self, share: f64) -> f64 {
        match self {
            MemcachedPool::Usr => 2.0,
            MemcachedPool::App => interpolate(&APP_VALUES, share),
            MemcachedPool::Var => interpolate(&VAR_VALUES, share),
            MemcachedPool::Sys => interpolate(&SYS_VALUES, share),
            MemcachedPool::Etc => {
                let mut below = 0.0;
                for (bytes, part) in ETC_SMALL_VALUES.iter().enumerate() {
                    below += part;
                    if share < below {
                        return bytes as f64;
                    }
                }
                let (scale, shape) = ETC_VALUES;
                // The part of the distribution that lies above the table.
                let rest = (share - below) / (1.0 - below);
                let skipped = 1.0 - (1.0 + shape * ETC_SMALL_VALUES.len() as f64 / scale).powf(-1.0 / shape);
                let at = skipped + rest * (1.0 - skipped);
                (scale / shape * ((1.0 - at).powf(-shape) - 1.0)).min(MAX_VALUE_BYTES)
            }
        }
    }
}

/// A number from 0 to 1, both left out, that follows from the id.
pub(super) fn unit_hash(id: u64, what: u64) -> f64 {
    ((mix64(id.wrapping_add(mix64(what))) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

fn interpolate(points: &[QuantilePoint], share: f64) -> f64 {
    for pair in points.windows(2) {
        if let [(from_share, from), (to_share, to)] = *pair
            && share < to_share
        {
            return from + (to - from) * (share - from_share) / (to_share - from_share);
        }
    }
    points.last().map_or(0.0, |(_, bytes)| *bytes)
}

impl fmt::Display for MemcachedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for MemcachedPool {
    type Err = String;

    fn from_str(text: &str) -> Result<MemcachedPool, String> {
        MemcachedPool::ALL.into_iter().find(|pool| pool.name() == text).ok_or_else(|| {
            let names = MemcachedPool::ALL.map(MemcachedPool::name).join(", ");
            format!("'{text}' is no pool: {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: u64 = 200_000;

    fn share(pool: MemcachedPool, holds: impl Fn(MemcachedPool, u64) -> bool) -> f64 {
        (0..IDS).filter(|id| holds(pool, *id)).count() as f64 / IDS as f64
    }

    /// Ids are not random: these cannot come out differently on another day.
    #[test]
    fn sizes_are_as_published() {
        let near = |found: f64, wanted: f64| assert!((found - wanted).abs() < 0.005, "{found} is not {wanted}");
        for (pool, key, value) in [
            (MemcachedPool::App, 45, 450),
            (MemcachedPool::Var, 30, 200),
            (MemcachedPool::Sys, 45, 640),
            (MemcachedPool::Usr, 21, 2),
        ] {
            let least = if pool == MemcachedPool::Usr { 1.0 } else { 0.99 };
            near(share(pool, |pool, id| pool.key_len(id) <= key), least);
            near(share(pool, |pool, id| pool.value_len(id) <= value), least);
        }
        near(share(MemcachedPool::Usr, |pool, id| [16, 21].contains(&pool.key_len(id))), 1.0);
        near(share(MemcachedPool::App, |pool, id| pool.key_len(id) == 31), 0.9);
        near(share(MemcachedPool::App, |pool, id| (260..=280).contains(&pool.value_len(id))), 0.3);
        near(share(MemcachedPool::Etc, |pool, id| [2, 3, 11].contains(&pool.value_len(id))), 0.3605);
    }

    #[test]
    fn etc_follows_the_fitted_distributions() {
        let near = |found: f64, wanted: f64| assert!((found - wanted).abs() < 0.005, "{found} is not {wanted}");
        let (location, scale, shape) = ETC_KEYS;
        for bytes in [20, 25, 30, 40, 60, 80] {
            let z = 1.0 + shape * (f64::from(bytes) + 0.5 - location) / scale;
            near(
                share(MemcachedPool::Etc, |pool, id| pool.key_len(id) <= bytes as usize),
                (-z.powf(-1.0 / shape)).exp(),
            );
        }
        let small: f64 = ETC_SMALL_VALUES.iter().sum();
        let tail = |bytes: f64| (1.0 + ETC_VALUES.1 * bytes / ETC_VALUES.0).powf(-1.0 / ETC_VALUES.1);
        for bytes in [20, 100, 300, 1000, 5000] {
            let above = (1.0 - small) * tail(f64::from(bytes)) / tail(15.0);
            near(share(MemcachedPool::Etc, |pool, id| pool.value_len(id) < bytes as usize), 1.0 - above);
        }
        for (bytes, part) in ETC_SMALL_VALUES.iter().enumerate() {
            near(share(MemcachedPool::Etc, |pool, id| pool.value_len(id) == bytes), *part);
        }
    }

    #[test]
    fn pools_parse_as_they_print() {
        for pool in MemcachedPool::ALL {
            assert_eq!(pool.to_string().parse::<MemcachedPool>().unwrap(), pool);
        }
        assert!("eta".parse::<MemcachedPool>().unwrap_err().contains("'eta' is no pool: usr, app, etc, var, sys"));
    }
}
