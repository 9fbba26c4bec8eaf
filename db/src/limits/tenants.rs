//! Limits of the directory of tenants. A tenant's own quotas stand in `tenants::Quotas`.

/// Tenants on one server, by default: bounds what a snapshot costs to rebuild (about 50 ns a tenant).
pub const TENANTS: usize = 16_384;
/// Smallest quota of a table in bytes: one growth step of its slots, and room for records.
pub const MIN_TABLE_BYTES: u64 = 64 << 10;
/// Quota of a table in bytes if none is given; less if the tenant has not twice as much left.
pub const DEFAULT_TABLE_BYTES: u64 = 1 << 30;
/// How long an old token works beside its successor if it is not said: time to tell every client of a small fleet.
pub const OLD_TOKEN_GRACE: std::time::Duration = std::time::Duration::from_secs(3600);
/// The same at most: 30 days. A token that is needed for longer has not been replaced.
pub const OLD_TOKEN_GRACE_MAX: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 3600);
/// Kills that are remembered for each tenant: enough to see a pattern, a few kilobytes a tenant.
pub const RECENT_KILLS: usize = 64;
/// Tables that one tenant may grant to one other: a quarter of what a tenant receives by default, so that no one
/// tenant can fill another's list.
pub const GRANTS_TO_ONE: usize = 16;
/// Changes a second, over time, that a tenant may ask for over the control port (tables, grants, tokens, suspensions):
/// every worker takes over each one, so its neighbours pay for them. What only ends something is not counted.
pub const CHANGES_PER_S: u64 = 20;
/// Bytes that the journal of tenants may have before it is replaced by one that holds what there is: some ten thousand
/// changes, read in a fraction of a second.
pub const JOURNAL_LEAST_BYTES: u64 = 4 << 20;
/// The same for a server with many tenants, as a multiple of what there was when it was replaced last: so replacing
/// costs a change a third of its own bytes, on average.
pub const JOURNAL_GROWTH: u64 = 4;
/// Changes that may come at once: a program that sets up all its tables.
pub const CHANGES_AT_ONCE: u64 = 200;
