//! The options and the rows of tables with a backing.

use clap::{Args, ValueEnum};
use sandstorm_client::control::{BackingPatch, BackingSpec, BackingStatus, ConflictRemedy, TableStatus, WritePolicy};

use crate::cli::output::{CliError, format_bytes};
use crate::cli::tenant::size_argument;

/// How a table uses its backing.
#[derive(Clone, Debug, Default, Args)]
pub(in crate::cli) struct BackingArgs {
    /// With a backing: when a write is answered [default: write-through]
    #[arg(long, value_enum)]
    policy: Option<PolicyArg>,
    /// Name of the tenant's secret with the backing's credentials; for s3 they are ACCESS_KEY:SECRET_KEY. Takes the
    /// operator's token
    #[arg(long, value_name = "NAME")]
    backing_secret: Option<String>,
    /// Milliseconds for which a loaded record counts as fresh; 0: until it is evicted [default: 0]
    #[arg(long, value_name = "MS")]
    fresh: Option<u64>,
    /// Milliseconds after --fresh for which a record is still shown while it is loaded anew [default: 0]
    #[arg(long, value_name = "MS")]
    stale: Option<u64>,
    /// Milliseconds for which an absent key is remembered, 1000 at least [default: 5000]
    #[arg(long, value_name = "MS")]
    absent: Option<u64>,
    /// With write-back: milliseconds between a record's change and its write to the backing [default: 1000]
    #[arg(long, value_name = "MS")]
    flush_after: Option<u64>,
    /// Bytes of changed records that may wait to be written; beyond them changes are refused [default: 64MiB]
    #[arg(long, value_name = "BYTES", value_parser = size_argument)]
    dirty: Option<u64>,
}

/// When a write is answered.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(in crate::cli) enum PolicyArg {
    /// When the backing has it
    WriteThrough,
    /// At once; it is written to the backing later, and is in the log until then
    WriteBack,
    /// Clients read only; a delete makes the table forget what it has in memory
    ReadThrough,
}

/// What becomes of records that two writers have changed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(in crate::cli) enum ConflictArg {
    /// They stay as they are, and the flush fails
    Keep,
    /// This table's records replace the other's
    Ours,
    /// The other's records replace this table's
    Theirs,
}

impl PolicyArg {
    fn policy(self) -> WritePolicy {
        match self {
            PolicyArg::WriteThrough => WritePolicy::WriteThrough,
            PolicyArg::WriteBack => WritePolicy::WriteBack,
            PolicyArg::ReadThrough => WritePolicy::ReadThrough,
        }
    }
}

impl ConflictArg {
    pub(super) fn choice(self) -> ConflictRemedy {
        match self {
            ConflictArg::Keep => ConflictRemedy::Keep,
            ConflictArg::Ours => ConflictRemedy::Ours,
            ConflictArg::Theirs => ConflictRemedy::Theirs,
        }
    }
}

impl BackingArgs {
    /// The backing of a new table.
    pub(super) fn spec(self, url: Option<String>) -> Result<Option<BackingSpec>, CliError> {
        let is_given = self.patch().is_some();
        let Some(url) = url else {
            return if is_given {
                Err(CliError::new("--policy and the like are for tables with --backing URL"))
            } else {
                Ok(None)
            };
        };
        let BackingArgs { policy, backing_secret: secret, fresh, stale, absent, flush_after, dirty } = self;
        Ok(Some(BackingSpec {
            url,
            secret,
            policy: policy.map_or_else(WritePolicy::default, PolicyArg::policy),
            fresh_ms: fresh,
            stale_ms: stale,
            absent_ms: absent,
            flush_after_ms: flush_after,
            dirty_limit_bytes: dirty,
        }))
    }

    /// The change of a table, if one is asked for.
    pub(super) fn patch(&self) -> Option<BackingPatch> {
        let BackingArgs { policy, backing_secret: secret, fresh, stale, absent, flush_after, dirty } = self.clone();
        let patch = BackingPatch {
            policy: policy.map(PolicyArg::policy),
            secret,
            fresh_ms: fresh,
            stale_ms: stale,
            absent_ms: absent,
            flush_after_ms: flush_after,
            dirty_limit_bytes: dirty,
        };
        (patch != BackingPatch::default()).then_some(patch)
    }
}

/// Adds columns to the list of tables, if one has a backing.
pub(super) fn add_columns(tables: &[TableStatus], head: &mut Vec<&'static str>, rows: &mut [Vec<String>]) {
    if tables.iter().all(|table| table.backing.is_none()) {
        return;
    }
    head.extend(["POLICY", "DIRTY", "OLDEST", "ERRORS"]);
    for (row, table) in rows.iter_mut().zip(tables) {
        row.extend(match &table.backing {
            None => ["-", "-", "-", "-"].map(str::to_owned),
            Some(backing) => [
                backing.policy.name().to_owned(),
                format_bytes(backing.dirty_bytes),
                seconds(backing.oldest_dirty_ms),
                (backing.load_errors + backing.flush_errors + backing.conflicts).to_string(),
            ],
        });
    }
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

/// The rows of one table.
pub(super) fn rows(backing: &BackingStatus) -> Vec<(&'static str, String)> {
    let BackingStatus { dirty_keys, dirty_bytes, dirty_limit_bytes, .. } = backing;
    let state = if backing.is_down { "down" } else { "answers" };
    let dirty = format!("{dirty_keys} ({} of {})", format_bytes(*dirty_bytes), format_bytes(*dirty_limit_bytes));
    vec![
        ("backing", backing.url.clone()),
        ("policy", backing.policy.name().to_owned()),
        ("backing state", backing.last_error.as_ref().map_or(state.to_owned(), |error| format!("{state}; {error}"))),
        ("dirty keys", dirty),
        ("oldest change", seconds(backing.oldest_dirty_ms)),
        ("in conflict", backing.conflicted_keys.to_string()),
        ("loads", format!("{} ({} failed)", backing.loads, backing.load_errors)),
        ("flushes", format!("{} ({} failed, {} conflicts)", backing.flushes, backing.flush_errors, backing.conflicts)),
        ("refused changes", backing.backing_refusals.to_string()),
    ]
}
