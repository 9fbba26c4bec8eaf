//! What tenants take that do nothing: memory and mappings, by thousands of them.

use std::fs;
use std::sync::Arc;

use sandstorm_client::control::TableMode;
use sandstorm_net::{CodePolicy, CodeTier};
use sandstorm_terminal::output::CliError;

use crate::bench_server;
use crate::distinct_library::DistinctLibraries;
use crate::local_server::{GET, LocalServer};
use crate::measure::resident_bytes;
use crate::report::{ExperimentFindings, ReportTable, RoundSpread};

/// Tenants with a table, and those with a library of their own beside it, in each tier.
const TENANTS: usize = 10_000;
const WITH_CODE: usize = 1_024;

/// The memory of this process.
#[derive(Clone, Copy, Debug)]
struct MemoryUse {
    resident_bytes: f64,
    mappings: f64,
}

impl MemoryUse {
    fn read() -> Result<MemoryUse, CliError> {
        let mappings = fs::read_to_string("/proc/self/maps")?.lines().count() as f64;
        Ok(MemoryUse { resident_bytes: resident_bytes()?, mappings })
    }
}

/// Adds a table of what idle tenants take.
pub(super) fn what_idle_tenants_take(findings: &mut ExperimentFindings) -> Result<(), CliError> {
    let server = bench_server::start_bench_server(1, |_| {})?;
    let mut table =
        ReportTable::new("What an idle tenant takes", "", ["tenants", "KiB of memory for each", "mappings for each"]);
    let mut add = |name: &str, tenants: usize, make: &mut dyn FnMut(usize) -> Result<(), CliError>| {
        // What is made once for all of them is not counted.
        make(0)?;
        let before = MemoryUse::read()?;
        (1..=tenants).try_for_each(&mut *make)?;
        let after = MemoryUse::read()?;
        let each = |of: fn(&MemoryUse) -> f64| RoundSpread::once((of(&after) - of(&before)) / tenants as f64);
        let cells = vec![
            RoundSpread::once(tenants as f64),
            each(|used| used.resident_bytes / 1024.0),
            each(|used| used.mappings),
        ];
        table.row(name, cells);
        Ok::<(), CliError>(())
    };
    add("with a table, and no code", TENANTS, &mut |number| {
        server.tenant(&format!("idle-{number}"), "t", TableMode::Store)?;
        Ok(())
    })?;
    let mut libraries = DistinctLibraries::new()?;
    for (tier, policy) in [(CodeTier::Native, CodePolicy::Native), (CodeTier::Sandboxed, CodePolicy::Sandboxed)] {
        add(&format!("with a table and a {tier} extension of its own"), WITH_CODE, &mut |number| {
            with_code(&server, &format!("{tier}-{number}"), (tier, policy), &mut libraries)
        })?;
    }
    findings.tables.push(table);
    Ok(())
}

fn with_code(
    server: &LocalServer,
    name: &str,
    (tier, policy): (CodeTier, CodePolicy),
    libraries: &mut DistinctLibraries,
) -> Result<(), CliError> {
    server.tenant_with_code(name, "t", TableMode::Store, Some(policy))?;
    let extension = Arc::new(libraries.load(&GET, tier)?);
    let loaded = server.directory().load_extension(name, extension, "", 0);
    loaded.map(|_| ()).map_err(|error| CliError::new(error.to_string()))
}
