//! `sandstorm events`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use sandstorm_catalog::format_utc;
use sandstorm_client::control::{EventQuery, EventRecord};
use serde_json::json;

use super::output::{CliError, OutputPrinter};
use super::session::CliSession;
use sandstorm_terminal::escape_one_line;

/// Seconds that the server waits for an event before it answers that there is none.
const WAIT_S: u64 = 5;

/// Events of the server.
#[derive(Debug, Args)]
pub(super) struct EventsArgs {
    /// Go on with events as they come, until interrupted
    #[arg(long, short = 'f')]
    follow: bool,
    /// Events from this long ago on, such as 90s, 30m, 12h, 7d
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    since: Option<Duration>,
    /// Events of this code, or of all codes that begin with this word, such as `extension`
    #[arg(long)]
    code: Option<String>,
    /// Events after this position, which `--json` prints as `id`
    #[arg(long, value_name = "ID")]
    after: Option<u64>,
    /// Events to print, at most; with --follow, before those that come
    #[arg(long, default_value_t = 100)]
    limit: usize,
}

/// A time to look back: a number and a unit.
pub(super) fn parse_age(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err("write a number and s, m, h or d, such as 30m".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "write a number and s, m, h or d, such as 30m".to_owned())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(|| "that is too long ago".to_owned())
}

/// The time so long ago, in milliseconds since 1970.
pub(super) fn since_ms(age: Option<Duration>) -> u64 {
    let Some(age) = age else { return 0 };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(age).as_millis() as u64
}

pub(super) fn run(session: &CliSession, args: &EventsArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let control = session.control();
    let mut query = EventQuery {
        after: args.after,
        since_ms: since_ms(args.since),
        tenant: session.named_tenant().map(str::to_owned),
        code: args.code.clone(),
        limit: Some(args.limit),
        wait_s: 0,
    };
    loop {
        let batch = control.events(&query)?;
        if batch.missed {
            let text = "events after the position may have been dropped before these";
            if out.json { out.json(&json!({"missed": text}))? } else { out.line(text)? }
        }
        for event in &batch.events {
            if out.json { out.json(event)? } else { out.line(&line(event))? }
        }
        if !args.follow {
            return Ok(());
        }
        query = EventQuery { after: Some(batch.next), wait_s: WAIT_S, limit: None, ..query };
    }
}

/// The event as a line. Names and texts are made fit for a terminal: none begins a line of its own.
fn line(event: &EventRecord) -> String {
    let EventRecord { at_ms, code, actor, from, tenant, subject, count, text, .. } = event;
    let who = match from {
        Some(from) => format!("{actor}@{from}"),
        None => actor.clone(),
    };
    let about = [tenant.as_deref(), subject.as_deref()].into_iter().flatten().collect::<Vec<_>>().join("/");
    let times = if *count > 1 { format!(" x{count}") } else { String::new() };
    let line = format!("{}  {code:<26} {who:<24} {about}{times}  {text}", format_utc(*at_ms));
    escape_one_line(line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_a_number_and_a_unit() {
        for (text, seconds) in [("90s", 90), ("30m", 1_800), ("12h", 43_200), ("7d", 604_800)] {
            assert_eq!(parse_age(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "5", "m", "-5m", "5 m", "5w", "99999999999999999d", "1.5h"] {
            assert!(parse_age(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_event_is_one_line_whatever_stands_in_it() {
        let event = EventRecord {
            code: "extension.refused".into(),
            actor: "tenant".into(),
            tenant: Some("a".into()),
            subject: Some("x\n\u{1b}[2J".into()),
            text: "\u{202e}forged\r\nserver.stopped".into(),
            count: 3,
            ..EventRecord::default()
        };
        let line = line(&event);
        assert!(!line.chars().any(|c| c.is_control() || c == '\u{202e}'), "{line:?}");
        assert!(line.contains("a/x\\n\\u{1b}[2J x3"), "{line}");
    }
}
