//! `sandstorm ext versions`, `sandstorm ext rollback`

use sandstorm_catalog::format_utc;
use sandstorm_client::control::{Deploy, ExtensionDeployment, ExtensionVersion};
use sandstorm_net::CodeTier;

use super::latency::format_duration;
use super::output::{CliError, OutputPrinter, columns};
use super::session::CliSession;

/// The tier's name; servers that do not name it have one.
pub(super) fn tier(tier: Option<CodeTier>) -> &'static str {
    tier.map_or("native", CodeTier::name)
}

pub(super) fn list(session: &CliSession, name: &str, all: bool, out: &OutputPrinter) -> Result<(), CliError> {
    let mut shown = session.control().extension(&session.tenant()?, name)?;
    shown.versions.retain(|version| all || version.state != "gone");
    let tried = shown.deployment;
    out.show(&shown.versions, |versions| table(versions, tried))
}

/// The share of the calls that a version has.
fn share(version: &ExtensionVersion, tried: Option<ExtensionDeployment>) -> String {
    match tried {
        Some(tried) if tried.version == version.version => format!("{} %", tried.percent),
        Some(tried) if version.state == "current" => format!("{} %", 100 - tried.percent.min(100)),
        None if version.state == "current" => "100 %".to_owned(),
        _ => "-".to_owned(),
    }
}

fn table(versions: &[ExtensionVersion], tried: Option<ExtensionDeployment>) -> String {
    let row = |version: &ExtensionVersion| {
        let stats = &version.stats;
        let counts = [stats.invocations, stats.failed, stats.killed].map(|count| count.to_string());
        let durations = [version.p50_ns, version.p99_ns].map(format_duration);
        let digest: String = version.source_digest.chars().take(12).collect();
        let tier = tier(version.tier).to_owned();
        let head = [version.version.to_string(), version.state.clone(), share(version, tried), tier];
        let tail = [version.manifest_version.clone(), digest, format_utc(version.loaded_at_ms)];
        head.into_iter().chain(counts).chain(durations).chain(tail).collect()
    };
    let rows: Vec<Vec<String>> = versions.iter().map(row).collect();
    let head = [
        "VERSION",
        "STATE",
        "SHARE",
        "TIER",
        "CALLS",
        "FAILED",
        "KILLED",
        "P50",
        "P99",
        "MANIFEST",
        "SOURCE",
        "LOADED (UTC)",
    ];
    let mut text = columns(&head, &rows);
    for version in versions {
        if let Some(why) = &version.refused {
            text.push_str(&format!("version {} is refused: {why}\n", version.version));
        }
    }
    text
}

/// Parses `NAME@7`.
pub(super) fn named_version(text: &str) -> Result<(String, u64), String> {
    let parts = text.rsplit_once('@').and_then(|(name, version)| Some((name.to_owned(), version.parse().ok()?)));
    parts.ok_or_else(|| "write the extension's name, @ and the version's number: leaderboard@7".to_owned())
}

pub(super) fn deploy(session: &CliSession, name: &str, deploy: Deploy, out: &OutputPrinter) -> Result<(), CliError> {
    let tenant = session.tenant()?;
    let shown = session.control().deploy(&tenant, name, &deploy)?;
    out.show(&shown, |shown| match shown.deployment {
        Some(tried) => format!(
            "version {} of {name} has {} % of the keys, version {} the others; `ext versions {name}` compares them\n",
            tried.version, tried.percent, shown.version
        ),
        None => format!("version {} of {name} has all calls\n", shown.version),
    })
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
