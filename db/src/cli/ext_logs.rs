//! `sandstorm ext logs`.

use clap::Args;
use clap::builder::PossibleValuesParser;
use sandstorm_catalog::format_utc;
use sandstorm_client::control::{LogLineRecord, LogQuery};
use serde_json::json;

use super::output::{CliError, OutputPrinter};
use super::session::CliSession;
use sandstorm_terminal::escape_one_line;

/// Seconds that the server waits for a line before it answers that there is none.
const WAIT_S: u64 = 5;

/// Lines of a tenant's log.
#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    /// Lines of this extension; without it those of all
    name: Option<String>,
    /// Go on with lines as they come, until interrupted
    #[arg(long, short = 'f')]
    follow: bool,
    /// Lines of this level and of more severe ones; debug lines are kept only while a client asks for them
    #[arg(long, default_value = "info", value_parser = PossibleValuesParser::new(["error", "warn", "info", "debug"]))]
    level: String,
    /// Lines of the call of this number, which each line has after `#`
    #[arg(long, value_name = "NUMBER")]
    call: Option<u64>,
    /// Lines after this one, which `--json` prints as `id`
    #[arg(long, value_name = "ID")]
    after: Option<u64>,
    /// Lines to print, at most; with --follow, before those that come
    #[arg(long, default_value_t = 100)]
    limit: usize,
}

impl LogsArgs {
    /// All lines of an extension as they come, from the last one on.
    pub(super) fn following(name: &str) -> LogsArgs {
        let (name, level) = (Some(name.to_owned()), "debug".to_owned());
        LogsArgs { name, follow: true, level, call: None, after: None, limit: 1 }
    }
}

pub(super) fn run(session: &CliSession, args: LogsArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let tenant = session.tenant()?;
    let control = session.control_as(&tenant);
    let LogsArgs { name, follow, level, call, after, limit } = args;
    let mut query =
        LogQuery { after, extension: name.clone(), level: Some(level), call, limit: Some(limit), wait_s: 0 };
    let mut left_out = None;
    loop {
        let batch = control.logs(&tenant, &query)?;
        if batch.missed {
            notice(out, "lines were displaced before these were read")?;
        }
        for line in &batch.lines {
            if out.json { out.json(line)? } else { out.line(&shown(line))? }
        }
        let more = batch.left_out.saturating_sub(left_out.unwrap_or(if follow { batch.left_out } else { 0 }));
        if more > 0 {
            notice(out, &format!("{more} lines were left out: too many came at once"))?;
        }
        left_out = Some(batch.left_out);
        if let Some(name) = name.as_ref().filter(|_| !follow && batch.lines.is_empty()) {
            // An extension that is not there writes no lines: was another one meant?
            session.control().extension(&tenant, name)?;
        }
        if !follow {
            return Ok(());
        }
        query = LogQuery { after: Some(batch.next), wait_s: WAIT_S, limit: None, ..query };
    }
}

fn notice(out: &OutputPrinter, text: &str) -> Result<(), CliError> {
    if out.json { out.json(&json!({"notice": text})) } else { out.line(&format!("({text})")) }
}

/// The line as it is printed. What the tenant's code wrote is made fit for a terminal, and begins no line of its own.
fn shown(line: &LogLineRecord) -> String {
    let LogLineRecord { at_us, level, extension, version, call, text, .. } = line;
    let at = format_utc(at_us / 1_000);
    escape_one_line(&format!("{at}.{:06}  {level:<5}  {extension}@{version} #{call}  {text}", at_us % 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_whatever_stands_in_it() {
        let line = LogLineRecord {
            at_us: 1_700_000_000_000_042,
            level: "info".into(),
            extension: "sum".into(),
            version: 3,
            call: 7,
            text: "a\r\n\u{1b}]0;x\u{7}\u{202e}b".into(),
            ..LogLineRecord::default()
        };
        let shown = shown(&line);
        assert!(!shown.chars().any(|c| c.is_control() || c == '\u{202e}'), "{shown:?}");
        assert!(shown.contains(".000042  info   sum@3 #7  a\\r\\n"), "{shown}");
    }
}
