//! Waits for extensions that the server builds again, and prints what became of them.

use std::time::Duration;

use sandstorm_client::control::{Control, RebuildStatus, RebuiltExtension};
use sandstorm_net::CodeTier;

use super::output::{CliError, columns};

/// Pauses between two questions after the state of a rebuild: the first and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Waits until a rebuild is over. It goes on in the server if this command is interrupted; the same command again waits
/// for what is left.
pub(super) fn wait(control: &Control, id: u64) -> Result<RebuildStatus, CliError> {
    let mut pause = FIRST_PAUSE;
    loop {
        let status = control.rebuild(id)?;
        if status.done {
            return Ok(status);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The results in columns, and their numbers.
pub(super) fn describe(status: &RebuildStatus) -> String {
    let row = |one: &RebuiltExtension| {
        let tier = one.tier.map_or("-", CodeTier::name).to_owned();
        let why = if one.text.is_empty() { "-".to_owned() } else { one.text.clone() };
        vec![one.tenant.clone(), one.extension.clone(), one.version.to_string(), tier, one.result.clone(), why]
    };
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for one in &status.results {
        match counts.iter_mut().find(|(result, _)| *result == one.result) {
            Some((_, count)) => *count += 1,
            None => counts.push((&one.result, 1)),
        }
    }
    let mut counted: Vec<String> = counts.iter().map(|(result, count)| format!("{count} {result}")).collect();
    if status.unlisted > 0 {
        counted.push(format!("{} not listed (the server's log has them)", status.unlisted));
    }
    if counted.is_empty() {
        return "no extensions\n".to_owned();
    }
    // What is as it was needs no line.
    let rows: Vec<_> = status.results.iter().filter(|one| one.result != "unchanged").map(row).collect();
    let table = match rows.is_empty() {
        true => String::new(),
        false => columns(&["TENANT", "EXTENSION", "VERSION", "TIER", "RESULT", "WHY"], &rows),
    };
    format!("{table}{}\n", counted.join(", "))
}
