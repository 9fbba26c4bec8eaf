//! The machine that the figures were measured on.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// The machine's description, as far as the system reports it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MachineDescription {
    pub(super) processor: String,
    /// Processors that this process may use.
    pub(super) processors: usize,
    pub(super) memory_bytes: u64,
    pub(super) kernel: String,
    pub(super) rustc: Option<String>,
    /// The commit of the folder that the program ran in; with `+changes` if something there was not committed.
    pub(super) commit: Option<String>,
    pub(super) version: &'static str,
    /// Whether the build is optimised: figures of another build mean nothing.
    pub(super) optimised: bool,
    /// Seconds since 1970.
    pub(super) unix_s: u64,
}

/// The output of a command in one line; empty if it fails.
fn command_output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The value of a line `name : value`.
pub(super) fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

impl MachineDescription {
    pub(crate) fn read() -> MachineDescription {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let kilobytes = field(&read("/proc/meminfo"), "MemTotal").and_then(|text| text.split(' ').next()?.parse().ok());
        let commit = command_output("git", &["rev-parse", "--short=12", "HEAD"]).map(|commit| {
            let changed = command_output("git", &["status", "--porcelain", "--untracked-files=no"]);
            if changed.is_some_and(|changes| !changes.is_empty()) { format!("{commit}+changes") } else { commit }
        });
        MachineDescription {
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kilobytes.unwrap_or(0u64) * 1024,
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
            rustc: command_output("rustc", &["--version"]),
            commit,
            version: env!("CARGO_PKG_VERSION"),
            optimised: !cfg!(debug_assertions),
            unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        }
    }
}

/// Formats seconds since 1970 as a date in UTC: `2026-11-20 16:30`.
pub(super) fn format_utc(unix_s: u64) -> String {
    let mut text = sandstorm_catalog::format_utc(unix_s.saturating_mul(1000));
    text.truncate("2026-11-20 16:30".len());
    text
}
