//! The quotas of a tenant. Each is declared once, in the table below, with unit, default, range and reason. The
//! structure, the partial form for configuration and HTTP, and the checks are generated from it.

use serde::{Deserialize, Serialize};

use crate::limits::{INVOCATION_MEMORY_BYTES, KILL_WINDOW_S, SLOW_AFTER_KILLS, SUSPEND_AFTER_KILLS};
use sandstorm_extension::limits::{ARENA_BYTES, ARENA_MAX_BYTES, REPLY_BYTES, SLICE_US, TOTAL_US};
use sandstorm_extension::{Budget, BudgetOverride};

macro_rules! quotas {
    ($( $(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr, $min:expr, $max:expr; )*) => {
        /// What one tenant may use.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Quotas {
            $( $(#[doc = $doc])+ pub $name: $type, )*
        }

        impl Default for Quotas {
            fn default() -> Quotas {
                Quotas { $( $name: $default, )* }
            }
        }

        /// Some quotas; the others stay as they are.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct QuotaChanges {
            $( $(#[doc = $doc])+ #[serde(default, skip_serializing_if = "Option::is_none")] pub $name: Option<$type>, )*
        }

        impl QuotaChanges {
            /// Names of all quotas.
            pub const NAMES: &'static [&'static str] = &[$( stringify!($name) ),*];

            /// `quotas` with these changes.
            ///
            /// # Errors
            /// [`QuotaError`] for a value outside of its range, or a slice that is longer than the total.
            pub fn apply(&self, quotas: &Quotas) -> Result<Quotas, QuotaError> {
                let changed = Quotas { $( $name: self.$name.unwrap_or(quotas.$name), )* };
                changed.check()?;
                Ok(changed)
            }

            /// These changes, followed by later ones.
            #[must_use]
            pub fn and(&self, later: &QuotaChanges) -> QuotaChanges {
                QuotaChanges { $( $name: later.$name.or(self.$name), )* }
            }

            /// Sets the quota of that name. Returns `false` if there is none, or the value does not fit.
            pub fn set(&mut self, name: &str, value: u64) -> bool {
                match name {
                    $( stringify!($name) => match <$type>::try_from(value) {
                        Ok(value) => { self.$name = Some(value); true }
                        Err(_) => false,
                    }, )*
                    _ => false,
                }
            }
        }

        impl Quotas {
            /// Each quota's name and value.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$( (stringify!($name), u64::from(self.$name)) ),*]
            }

            /// The declaration of each quota, for the page about them.
            #[cfg(any(test, feature = "testing"))]
            pub fn declared() -> Vec<QuotaDeclaration> {
                let meaning = |lines: &[&str]| lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
                vec![$( QuotaDeclaration {
                    name: stringify!($name),
                    meaning: meaning(&[$($doc),+]),
                    default: u64::from($default),
                    min: u64::from($min),
                    max: u64::from($max),
                } ),*]
            }

            /// Whether every quota is in its range.
            ///
            /// # Errors
            /// The first one that is not.
            pub fn check(&self) -> Result<(), QuotaError> {
                $( if !($min..=$max).contains(&self.$name) {
                    return Err(QuotaError::Range {
                        name: stringify!($name),
                        value: u64::from(self.$name),
                        min: u64::from($min),
                        max: u64::from($max),
                    });
                } )*
                if self.slice_us > self.total_us {
                    return Err(QuotaError::SliceOverTotal { slice_us: self.slice_us, total_us: self.total_us });
                }
                Ok(())
            }
        }
    };
}

/// A quota as it is declared in the table below.
#[cfg(any(test, feature = "testing"))]
pub struct QuotaDeclaration {
    /// Its name.
    pub name: &'static str,
    /// The thing that it bounds.
    pub meaning: String,
    /// Its default.
    pub default: u64,
    /// Its smallest value.
    pub min: u64,
    /// Its largest value.
    pub max: u64,
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

quotas! {
    /// Bytes of records, with their overhead, that the quotas of all tables of the tenant may add up to.
    memory_bytes: u64 = 4 * GIB, MIB, 64u64 << 40;
    /// Bytes of memory of all the tenant's invocations together: arenas and replies as they grow, arguments, and the
    /// stacks of those that were switched out. Each begins with 68 KiB.
    invocation_memory_bytes: u64 = INVOCATION_MEMORY_BYTES, MIB, 1u64 << 40;
    /// Bytes of memory of one invocation (its arena).
    arena_bytes: u64 = ARENA_BYTES as u64, 64u64 << 10, ARENA_MAX_BYTES as u64;
    /// Invocations that run or wait at the same time; one more is answered `OverQuota`. Bounds arenas and queues.
    concurrent_invocations: u32 = 256u32, 1u32, 65_536u32;
    /// Requests a second, 0: unlimited. Every operation of a message is one, and every key of a multiget. A tenth of a
    /// second's worth may come at once; a message that is more than that passes once the tenant has been at rest, and
    /// is waited for after.
    requests_per_s: u32 = 0u32, 0u32, u32::MAX;
    /// Bytes of the disk that the spill file of each of its tables may take (tables of mode `spill`). For all tables
    /// together that is this times `tables`.
    spill_bytes: u64 = 16 * GIB, 64 * MIB, 16u64 << 40;
    /// Cold records of tables of mode `spill` that are read from the disk a second, 0: unlimited. Further ones wait.
    cold_reads_per_s: u32 = 0u32, 0u32, u32::MAX;
    /// Bytes of the disk that these reads take a second, 0: unlimited. Further ones wait.
    cold_bytes_per_s: u64 = 0u64, 0u64, 1u64 << 40;
    /// Tables.
    tables: u32 = 64u32, 0u32, 65_536u32;
    /// Extensions loaded at the same time.
    extensions: u32 = 64u32, 0u32, 4_096u32;
    /// Pushes within any hour: each costs a compilation.
    pushes_per_hour: u32 = 240u32, 0u32, 100_000u32;
    /// Pushes that wait for the builder while another one of the tenant's is built: bounds what it holds in memory.
    waiting_pushes: u32 = 4u32, 0u32, 64u32;
    /// Bytes of one invocation's reply.
    reply_bytes: u64 = REPLY_BYTES as u64, 0u64, sandstorm_net::rpc::MAX_VALUE_LEN as u64;
    /// CPU microseconds that an invocation may compute between two yields.
    slice_us: u64 = SLICE_US, 10u64, 60_000_000u64;
    /// CPU microseconds that an invocation may compute in all.
    total_us: u64 = TOTAL_US, 10u64, 3_600_000_000u64;
    /// Kills of one extension within `kill_window_s` after which its calls are admitted at a bounded rate, where they
    /// are also one in a hundred of its calls or more; 0: never.
    slow_after_kills: u32 = SLOW_AFTER_KILLS, 0u32, u32::MAX;
    /// Kills, counted so, after which the extension is suspended; 0: never.
    suspend_after_kills: u32 = SUSPEND_AFTER_KILLS, 0u32, u32::MAX;
    /// Seconds for which kills count.
    kill_window_s: u32 = KILL_WINDOW_S, 1u32, 86_400u32;
    /// Share of CPU time against the other tenants of a worker, for deficit round robin.
    weight: u32 = 1u32, 1u32, 1_000u32;
    /// Grants of its tables that it may give to other tenants. Each makes two tenants' snapshots a little longer.
    grants_given: u32 = 64u32, 0u32, 4_096u32;
    /// Grants that it may receive; further ones do not reach it. One other tenant takes at most 16 of them.
    grants_received: u32 = 64u32, 0u32, 4_096u32;
}

impl Quotas {
    /// The budget of one invocation of the tenant.
    #[inline]
    pub fn budget(&self) -> Budget {
        Budget {
            slice_us: self.slice_us,
            total_us: self.total_us,
            memory_bytes: self.arena_bytes as usize,
            reply_bytes: self.reply_bytes as usize,
        }
    }

    /// Checks that an extension may have this budget, which need not be within the tenant's.
    ///
    /// # Errors
    /// [`QuotaError`] for a value outside of its range, or a slice that is longer than the total.
    pub fn check_budget(&self, budget: &BudgetOverride) -> Result<(), QuotaError> {
        let changes = QuotaChanges {
            slice_us: budget.slice_us,
            total_us: budget.total_us,
            arena_bytes: budget.memory_bytes.map(|bytes| bytes as u64),
            reply_bytes: budget.reply_bytes.map(|bytes| bytes as u64),
            ..QuotaChanges::default()
        };
        changes.apply(self).map(|_| ())
    }
}

/// A value of a quota that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// Outside of its range.
    #[error("quota {name} = {value} is outside of {min} to {max}")]
    Range {
        /// The quota.
        name: &'static str,
        /// The requested value.
        value: u64,
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
    },
    /// A slice longer than the whole budget can never be reached.
    #[error("quota slice_us = {slice_us} is longer than total_us = {total_us}")]
    SliceOverTotal {
        /// The slice.
        slice_us: u64,
        /// The total.
        total_us: u64,
    },
}

impl QuotaError {
    /// The keys that it concerns, in the table of quotas of that name.
    pub fn keys(&self, table: &str) -> Vec<String> {
        let names: &[&str] = match self {
            QuotaError::Range { name, .. } => &[name],
            QuotaError::SliceOverTotal { .. } => &["slice_us", "total_us"],
        };
        names.iter().map(|name| format!("{table}.{name}")).collect()
    }
}
