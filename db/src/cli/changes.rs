//! `sandstorm changes`: the feed of a table's changes.

use clap::Args;
use sandstorm_client::control::TableChange;

use super::output::{CliError, OutputPrinter};
use super::session::CliSession;
use sandstorm_terminal::escape_one_line;

/// Seconds that the server waits for a change before it answers that there is none.
const WAIT_S: u64 = 5;

/// Changes of a table with durability, in their order, as they reach the disk.
#[derive(Debug, Args)]
#[command(
    after_help = "A change is printed once it is on the disk. The position of the last one that you have handled \
    is where to go on: --after POSITION. To begin, take the end of the log (without --after), export the table, and \
    follow from there: docs/durability.md."
)]
pub(super) struct ChangesArgs {
    /// Name of the table
    table: String,
    /// Changes behind this position, as an earlier line has it [default: from now on; without --follow only the
    /// position is printed]
    #[arg(long, value_name = "POSITION")]
    after: Option<u64>,
    /// Go on with changes as they come, until interrupted
    #[arg(long, short = 'f')]
    follow: bool,
}

pub(super) fn run(session: &CliSession, args: &ChangesArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let (control, tenant) = (session.control(), session.tenant()?);
    let mut after = args.after.map(|after| after.to_string());
    if after.is_none() {
        let page = control.changes(&tenant, &args.table, None, 0)?;
        if !args.follow {
            return out.show(&page, |page| format!("{}\n", page.next));
        }
        after = Some(page.next);
    }
    loop {
        let page = control.changes(&tenant, &args.table, after.as_deref(), if args.follow { WAIT_S } else { 0 })?;
        for change in &page.changes {
            if out.json { out.json(change)? } else { out.line(&line(change))? }
        }
        if page.at_end && !args.follow {
            return Ok(());
        }
        after = Some(page.next);
    }
}

/// A change as a line, fit for a terminal: no key or value begins a line of its own.
fn line(change: &TableChange) -> String {
    let TableChange { position, op, record } = change;
    let text = |plain: &Option<String>, base64: &Option<String>| match (plain, base64) {
        (Some(text), _) => text.clone(),
        (None, Some(base64)) => format!("base64:{base64}"),
        (None, None) => String::new(),
    };
    let (key, value) = (text(&record.key, &record.key_base64), text(&record.value, &record.value_base64));
    let line = format!("{position}  {op:<6}  v{}  {key}  {value}", record.version);
    escape_one_line(line.trim_end())
}

#[cfg(test)]
mod tests {
    use sandstorm_client::control::ExportedRecord;

    use super::*;

    #[test]
    fn a_change_is_one_line_whatever_stands_in_it() {
        let record = ExportedRecord {
            key: Some("a\n\u{1b}[2J".into()),
            value_base64: Some("AP8=".into()),
            version: 7,
            ..ExportedRecord::default()
        };
        let change = TableChange { position: "120".into(), op: "put".into(), record };
        let line = line(&change);
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert_eq!(line, "120  put     v7  a\\n\\u{1b}[2J  base64:AP8=");
    }
}
