//! `sandstorm ext versions`, `sandstorm ext rollback`

use sandstorm_catalog::format_utc;
use sandstorm_client::control::ExtensionVersion;
use sandstorm_net::CodeTier;

use super::latency::format_duration;
use super::output::{CliError, OutputPrinter, columns};
use super::session::CliSession;

/// The tier's name; servers that do not name it have one.
pub(super) fn tier(tier: Option<CodeTier>) -> &'static str {
    tier.map_or("native", CodeTier::name)
}

pub(super) fn list(session: &CliSession, name: &str, all: bool, out: &OutputPrinter) -> Result<(), CliError> {
    let mut versions = session.control().extension(&session.tenant()?, name)?.versions;
    versions.retain(|version| all || version.state != "gone");
    out.show(&versions, |versions| table(versions))
}

fn table(versions: &[ExtensionVersion]) -> String {
    let row = |version: &ExtensionVersion| {
        let stats = &version.stats;
        let counts = [stats.invocations, stats.failed, stats.killed].map(|count| count.to_string());
        let durations = [version.p50_ns, version.p99_ns].map(format_duration);
        let digest: String = version.source_digest.chars().take(12).collect();
        let head = [version.version.to_string(), version.state.clone(), tier(version.tier).to_owned()];
        let tail = [version.manifest_version.clone(), digest, format_utc(version.loaded_at_ms)];
        head.into_iter().chain(counts).chain(durations).chain(tail).collect()
    };
    let rows: Vec<Vec<String>> = versions.iter().map(row).collect();
    let head =
        ["VERSION", "STATE", "TIER", "CALLS", "FAILED", "KILLED", "P50", "P99", "MANIFEST", "SOURCE", "LOADED (UTC)"];
    let mut text = columns(&head, &rows);
    for version in versions {
        if let Some(why) = &version.refused {
            text.push_str(&format!("version {} is refused: {why}\n", version.version));
        }
    }
    text
}

pub(super) fn roll_back(
    session: &CliSession,
    name: &str,
    version: Option<u64>,
    out: &OutputPrinter,
) -> Result<(), CliError> {
    let tenant = session.tenant()?;
    let shown = session.control().roll_back(&tenant, name, version)?;
    out.show(&shown, |shown| {
        format!("version {} of {name} is called from now on; `ext versions {name}` shows the others\n", shown.version)
    })
}
