//! `sandstorm kills`.

use std::time::Duration;

use clap::Args;
use sandstorm_catalog::format_utc;
use sandstorm_client::control::{CodePlaceReport, KillQuery, KillReport};

use super::events::{parse_age, since_ms};
use super::output::{CliError, OutputPrinter, columns};
use super::session::CliSession;
use sandstorm_terminal::escape_one_line;

/// The time between two looks for new kills.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);
/// Characters of a kill's text that are shown.
const SHOWN_TEXT: usize = 160;

/// Invocations that were ended lately.
#[derive(Debug, Args)]
pub(super) struct KillsArgs {
    /// Kills to show, at most; with --follow, before those that come
    #[arg(long, default_value_t = 20)]
    limit: usize,
    /// Kills of extensions of this name
    #[arg(long, value_name = "NAME")]
    extension: Option<String>,
    /// Kills of this cause, such as panic or total_budget; notice: measures of the server
    #[arg(long)]
    cause: Option<String>,
    /// Kills from this long ago on, such as 90s, 30m, 12h, 7d
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    since: Option<Duration>,
    /// Go on with kills as they come, until interrupted
    #[arg(long, short = 'f')]
    follow: bool,
    /// Below each kill, all functions that were under way, the innermost first, and what is kept of its arguments
    #[arg(long)]
    places: bool,
}

pub(super) fn run(session: &CliSession, args: &KillsArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let mut query = KillQuery {
        tenant: session.named_tenant().map(str::to_owned),
        extension: args.extension.clone(),
        cause: args.cause.clone(),
        since_ms: since_ms(args.since),
        limit: Some(args.limit),
    };
    let mut kills = session.control().find_kills(&query)?;
    if !args.follow {
        return out.show(&kills, |kills| if args.places { with_places(kills) } else { table(kills) });
    }
    let mut seen: Vec<KillReport> = Vec::new();
    loop {
        for kill in unseen(kills, &mut seen) {
            if out.json {
                out.json(&kill)?
            } else {
                out.line(&escape_one_line(&cells(&kill).join("  ")))?
            }
            if args.places && !out.json {
                details(&kill).iter().try_for_each(|line| out.line(&escape_one_line(line)))?;
            }
        }
        std::thread::sleep(FOLLOW_INTERVAL);
        query.since_ms = seen.first().map_or(query.since_ms, |last| last.at_ms);
        query.limit = Some(usize::MAX);
        kills = session.control().find_kills(&query)?;
    }
}

/// The kills of an answer, newest first, that were not seen before, oldest first. `seen` holds those of the newest
/// millisecond: the next answer begins with them again.
fn unseen(kills: Vec<KillReport>, seen: &mut Vec<KillReport>) -> Vec<KillReport> {
    let mut known = seen.clone();
    let mut new: Vec<KillReport> = Vec::new();
    for kill in kills.into_iter().rev() {
        // Two may be the same in everything: each is known once.
        match known.iter().position(|known| *known == kill) {
            Some(at) => drop(known.swap_remove(at)),
            None => new.push(kill),
        }
    }
    for kill in &new {
        if seen.first().is_some_and(|last| last.at_ms < kill.at_ms) {
            seen.clear();
        }
        if seen.first().is_none_or(|last| last.at_ms == kill.at_ms) {
            seen.push(kill.clone());
        }
    }
    new
}

fn cells(kill: &KillReport) -> Vec<String> {
    vec![
        format_utc(kill.at_ms),
        kill.tenant.clone(),
        format!("{} v{}", kill.extension, kill.version),
        kill.cause.clone(),
        kill.cpu_us.to_string(),
        kill.wall_us.to_string(),
        kill.text.chars().map(|c| if matches!(c, '\n' | '\t') { ' ' } else { c }).take(SHOWN_TEXT).collect(),
    ]
}

fn table(kills: &[KillReport]) -> String {
    let rows: Vec<Vec<String>> = kills.iter().map(cells).collect();
    columns(&["TIME (UTC)", "TENANT", "EXTENSION", "CAUSE", "CPU_US", "WALL_US", "TEXT"], &rows)
}

/// What is known of a kill beside its row.
fn details(kill: &KillReport) -> Vec<String> {
    let place = |place: &CodePlaceReport| match (place.file.as_str(), place.line) {
        ("", _) => format!("    {}", place.function),
        (file, 0) => format!("    {}  {file}", place.function),
        (file, line) => format!("    {}  {file}:{line}", place.function),
    };
    let arguments = (!kill.arguments.is_empty()).then(|| format!("    arguments: {}", kill.arguments));
    kill.places.iter().map(place).chain(arguments).collect()
}

/// The table, and below each kill what is known of it.
fn with_places(kills: &[KillReport]) -> String {
    let text = table(kills);
    let mut rows = text.lines();
    let mut shown: Vec<String> = rows.next().map(str::to_owned).into_iter().collect();
    for (row, kill) in rows.zip(kills) {
        shown.push(row.to_owned());
        shown.extend(details(kill).iter().map(|line| escape_one_line(line)));
    }
    shown.push(String::new());
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kill(at_ms: u64, cpu_us: u64) -> KillReport {
        KillReport { at_ms, cpu_us, ..KillReport::default() }
    }

    #[test]
    fn followed_kills_are_shown_once_even_if_two_are_the_same() {
        let mut seen = Vec::new();
        assert_eq!(unseen(vec![kill(7, 2), kill(7, 2), kill(5, 1)], &mut seen).len(), 3);
        assert_eq!(seen, [kill(7, 2), kill(7, 2)]);
        // The next answer begins at the millisecond of the last ones; one more came in it.
        assert_eq!(unseen(vec![kill(7, 2), kill(7, 2), kill(7, 2)], &mut seen), [kill(7, 2)]);
        assert_eq!(unseen(vec![kill(7, 2), kill(7, 2), kill(7, 2)], &mut seen), []);
        assert_eq!(unseen(vec![kill(9, 4), kill(8, 3), kill(7, 2)], &mut seen), [kill(8, 3), kill(9, 4)]);
        assert_eq!(seen, [kill(9, 4)]);
    }
}
