//! `sandstorm trigger …`

use clap::{Args, Subcommand, ValueEnum};
use sandstorm_catalog::format_utc;
use sandstorm_client::control::{ControlError, DeadLetterReport, TriggerPatch, TriggerReport, TriggerSpec};
use sandstorm_client::split_name;

use super::output::{CliError, OutputPrinter, columns, counted, fields, format_bytes};
use super::session::CliSession;
use sandstorm_terminal::escape_one_line;

/// Calls of a tenant's extensions by the clock, or for each change of a table.
#[derive(Debug, Subcommand)]
pub(super) enum TriggerCommand {
    /// Create a trigger
    Create(CreateArgs),
    /// List the triggers
    List,
    /// Show all about a trigger
    Show {
        /// Name of the trigger
        name: String,
    },
    /// Change a trigger in its place: its position in the feed and its dead letters stay
    Set(SetArgs),
    /// Make no calls until the trigger is resumed; changes of its table wait in the log
    Pause {
        /// Name of the trigger
        name: String,
    },
    /// Make calls again
    Resume {
        /// Name of the trigger
        name: String,
    },
    /// Make the calls of dead letters again, or those for all changes behind a position
    Replay {
        /// Name of the trigger
        name: String,
        /// Go on from this position of the table's feed instead, or from its "end"
        #[arg(long, value_name = "POSITION")]
        from: Option<String>,
    },
    /// List the calls whose tries are over
    DeadLetters {
        /// Name of the trigger
        name: String,
        /// Remove them
        #[arg(long)]
        discard: bool,
    },
    /// Delete a trigger with its dead letters
    Delete {
        /// Name of the trigger
        name: String,
    },
}

/// A trigger that is to be made.
#[derive(Debug, Args)]
#[command(after_help = "Calls are made at least once: after a crash some are made again. Those for a table get the \
    change as their arguments (sandstorm_api::change), in the order of each key's changes: docs/triggers.md.")]
pub(super) struct CreateArgs {
    /// Name of the trigger: 1 to 64 letters, digits, '_', '-' and '.'
    name: String,
    /// The extension to call; of several typed functions one: EXTENSION.FUNCTION
    #[arg(long, value_name = "NAME")]
    extension: String,
    /// Call it so often, such as 5s, 10m, 1d
    #[arg(long, value_name = "TIME", group = "source")]
    every: Option<String>,
    /// Call it by the five fields of cron, in UTC
    #[arg(long, value_name = "FIELDS", group = "source")]
    cron: Option<String>,
    /// Call it for changes of this table, which has to have durability
    #[arg(long, value_name = "TABLE", group = "source")]
    on: Option<String>,
    /// For which changes [default: all but expire]
    #[arg(long, value_enum, value_delimiter = ',', requires = "on")]
    ops: Vec<TriggerOpArg>,
    /// Up to so many changes in one call, which is to read them with `Changes`: 1 to 256 [default: each call has one]
    #[arg(long, value_name = "CHANGES", requires = "on")]
    batch: Option<u32>,
    /// Arguments of calls by the clock; JSON for a typed function
    #[arg(long, conflicts_with = "on", default_value = "")]
    args: String,
    /// Times that a call which failed is made again [default: 8]
    #[arg(long)]
    retries: Option<u32>,
}

/// What of a trigger is to be another.
#[derive(Debug, Args)]
#[command(
    after_help = "What is left out stays. A trigger of a table keeps the table. Calls that run go on, and may be made \
    again by the new definition. --ops all and --batch 0 undo what --ops and --batch have said."
)]
pub(super) struct SetArgs {
    /// Name of the trigger
    name: String,
    /// The extension to call; of several typed functions one: EXTENSION.FUNCTION
    #[arg(long, value_name = "NAME")]
    extension: Option<String>,
    /// Call it so often, such as 5s, 10m, 1d, in place of its schedule
    #[arg(long, value_name = "TIME", conflicts_with = "cron")]
    every: Option<String>,
    /// Call it by the five fields of cron, in UTC, in place of its schedule
    #[arg(long, value_name = "FIELDS")]
    cron: Option<String>,
    /// Its table, which cannot be another
    #[arg(long, value_name = "TABLE", hide = true)]
    on: Option<String>,
    /// For which changes
    #[arg(long, value_enum, value_delimiter = ',')]
    ops: Vec<ChangedOpsArg>,
    /// Up to so many changes in one call; 0: each call has one
    #[arg(long, value_name = "CHANGES")]
    batch: Option<u32>,
    /// Arguments of calls by the clock; JSON for a typed function
    #[arg(long)]
    args: Option<String>,
    /// Times that a call which failed is made again
    #[arg(long)]
    retries: Option<u32>,
}

/// A kind of change.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum TriggerOpArg {
    /// A record was written
    Put,
    /// A record was deleted, or evicted
    Delete,
    /// All records were removed
    Clear,
    /// The time of a record was over
    Expire,
}

/// The kinds of changes that a trigger is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ChangedOpsArg {
    /// All but expire, as of a trigger that was created without --ops
    All,
    /// Records that are written
    Put,
    /// Records that are deleted, or evicted
    Delete,
    /// All records are removed
    Clear,
    /// The time of a record is over
    Expire,
}

/// What a change says of the kinds; `None`: they stay.
fn changed_ops(ops: &[ChangedOpsArg]) -> Result<Option<Vec<String>>, CliError> {
    if ops.contains(&ChangedOpsArg::All) {
        return match ops {
            // A trigger has all if it names none.
            [_] => Ok(Some(Vec::new())),
            _ => Err(CliError::new("--ops all stands alone: expire is not in it").code("usage")),
        };
    }
    let names = ops.iter().filter_map(ValueEnum::to_possible_value).map(|value| value.get_name().to_owned());
    Ok((!ops.is_empty()).then(|| names.collect()))
}

impl TriggerOpArg {
    fn name(self) -> &'static str {
        match self {
            TriggerOpArg::Put => "put",
            TriggerOpArg::Delete => "delete",
            TriggerOpArg::Clear => "clear",
            TriggerOpArg::Expire => "expire",
        }
    }
}

pub(super) fn run(session: &CliSession, command: TriggerCommand, out: &OutputPrinter) -> Result<(), CliError> {
    let (control, tenant) = (session.control(), session.tenant()?);
    match command {
        TriggerCommand::Create(CreateArgs { name, extension, every, cron, on, ops, batch, args, retries }) => {
            let ops = ops.into_iter().map(|op| op.name().to_owned()).collect();
            let spec = TriggerSpec { name, extension, every, cron, table: on, ops, batch, args, retries };
            let created = control.create_trigger(&tenant, &spec)?;
            out.show(&created, |created| {
                let called = split_name(&created.spec.extension).0;
                let is_absent = matches!(control.extension(&tenant, called), Err(ControlError::NotFound { .. }));
                let waits = match is_absent {
                    true => {
                        format!("there is no extension {called} yet: the trigger's calls wait until it is pushed\n")
                    }
                    false => String::new(),
                };
                format!("created trigger {}: {}\n{waits}", created.spec.name, when(created))
            })
        }
        TriggerCommand::List => out.show(&control.triggers(&tenant)?, |triggers| list(triggers)),
        TriggerCommand::Show { name } => out.show(&control.trigger(&tenant, &name)?, shown),
        TriggerCommand::Set(SetArgs { name, extension, every, cron, on, ops, batch, args, retries }) => {
            let ops = changed_ops(&ops)?;
            let change = TriggerPatch { extension, every, cron, table: on, ops, batch, args, retries };
            if change == TriggerPatch::default() {
                let all = "--extension, --every, --cron, --ops, --batch, --args and --retries";
                return Err(CliError::new(format!("nothing to change: name one of {all}")).code("usage"));
            }
            let changed = control.change_trigger(&tenant, &name, &change)?;
            out.show(&changed, |changed| {
                format!("changed trigger {}: calls {} {}\n", changed.spec.name, changed.spec.extension, when(changed))
            })
        }
        TriggerCommand::Pause { name } => {
            control.pause_trigger(&tenant, &name)?;
            out.done(&format!("paused trigger {name}"))
        }
        TriggerCommand::Resume { name } => {
            control.resume_trigger(&tenant, &name)?;
            out.done(&format!("resumed trigger {name}"))
        }
        TriggerCommand::Replay { name, from } => {
            let letters = control.replay_trigger(&tenant, &name, from.as_deref())?;
            let text = match from {
                Some(from) => going_on(&name, &from),
                None => replaying(&name, letters),
            };
            out.done(&text)
        }
        TriggerCommand::DeadLetters { name, discard: false } => {
            out.show(&control.dead_letters(&tenant, &name)?, |letters| dead_letters(letters))
        }
        TriggerCommand::DeadLetters { name, discard: true } => {
            control.discard_dead_letters(&tenant, &name)?;
            out.done(&format!("removed the dead letters of trigger {name}"))
        }
        TriggerCommand::Delete { name } => {
            control.delete_trigger(&tenant, &name)?;
            out.done(&format!("deleted trigger {name}"))
        }
    }
}

/// From where a trigger goes on.
fn going_on(name: &str, from: &str) -> String {
    match from {
        "end" => format!("trigger {name} goes on from the end of the log"),
        from => format!("trigger {name} goes on from position {from}"),
    }
}

/// How many dead letters are replayed.
fn replaying(name: &str, letters: u64) -> String {
    let are = if letters == 1 { "is" } else { "are" };
    format!("{} of trigger {name} {are} made again", counted(letters, "call"))
}

/// What a trigger waits for.
fn when(trigger: &TriggerReport) -> String {
    let TriggerSpec { every, cron, table, ops, batch, .. } = &trigger.spec;
    let together = batch.map_or_else(String::new, |batch| format!(", {batch} a call"));
    match (every, cron, table) {
        (Some(every), ..) => format!("every {every}"),
        (_, Some(cron), _) => format!("cron {cron}"),
        (.., Some(table)) if ops.is_empty() => format!("on {table}{together}"),
        (.., Some(table)) => format!("on {table}: {}{together}", ops.join(", ")),
        _ => String::new(),
    }
}

/// All about one.
fn shown(trigger: &TriggerReport) -> String {
    let TriggerReport { spec, state, reason, position, behind_bytes, next_due_ms, .. } = trigger;
    let mut rows = vec![("trigger", spec.name.clone()), ("calls", spec.extension.clone()), ("when", when(trigger))];
    if !spec.args.is_empty() {
        rows.push(("args", escape_one_line(&spec.args)));
    }
    if let Some(retries) = spec.retries {
        rows.push(("retries", retries.to_string()));
    }
    let why = if reason.is_empty() { String::new() } else { format!(": {}", escape_one_line(reason)) };
    rows.push(("state", format!("{state}{why}")));
    if let (Some(position), Some(behind)) = (position, behind_bytes) {
        rows.push(("position", format!("{position}, {} behind", format_bytes(*behind))));
    }
    if let Some(due_ms) = next_due_ms {
        rows.push(("next", format_utc(*due_ms)));
    }
    rows.push((
        "calls since the start",
        format!(
            "{} open, {} succeeded, {} failed, {} not run, {} skipped",
            trigger.open, trigger.succeeded, trigger.failed, trigger.not_run, trigger.skipped
        ),
    ));
    rows.push(("dead letters", trigger.dead_letters.to_string()));
    if !trigger.last_error.is_empty() {
        let at = trigger.last_error_at_ms.map_or_else(String::new, |at_ms| format!("{}: ", format_utc(at_ms)));
        rows.push(("last error", format!("{at}{}", escape_one_line(&trigger.last_error))));
    }
    fields(&rows)
}

fn list(triggers: &[TriggerReport]) -> String {
    let row = |trigger: &TriggerReport| {
        let next = match (trigger.next_due_ms, trigger.behind_bytes) {
            (Some(due_ms), _) => format_utc(due_ms),
            (_, Some(behind)) => format!("{} behind", format_bytes(behind)),
            _ => "-".to_owned(),
        };
        vec![
            trigger.spec.name.clone(),
            trigger.spec.extension.clone(),
            when(trigger),
            trigger.state.clone(),
            next,
            trigger.succeeded.to_string(),
            trigger.failed.to_string(),
            trigger.dead_letters.to_string(),
            reason_or_error(trigger),
        ]
    };
    let head = ["NAME", "EXTENSION", "WHEN", "STATE", "NEXT", "OK", "FAILED", "DEAD", "REASON OR LAST ERROR"];
    columns(&head, &triggers.iter().map(row).collect::<Vec<_>>())
}

/// Why a trigger makes no calls; else its last error, and when that was: later calls may have succeeded.
fn reason_or_error(trigger: &TriggerReport) -> String {
    match (trigger.reason.as_str(), trigger.last_error_at_ms) {
        ("", Some(at_ms)) => format!("{}: {}", format_utc(at_ms), escape_one_line(&trigger.last_error)),
        // A server of an earlier version does not say when.
        ("", None) => escape_one_line(&trigger.last_error),
        (reason, _) => escape_one_line(reason),
    }
}

fn dead_letters(letters: &[DeadLetterReport]) -> String {
    let row = |letter: &DeadLetterReport| {
        let args = letter.args_base64.as_ref().map_or_else(|| "too long to be kept".to_owned(), String::clone);
        let (id, tries) = (letter.id.to_string(), letter.tries.to_string());
        let (op, version) = (letter.op.as_deref().unwrap_or("-"), letter.version);
        let key = match (&letter.key, &letter.key_base64) {
            (Some(key), _) => escape_one_line(key),
            (None, Some(base64)) => format!("base64:{}", escape_one_line(base64)),
            (None, None) => "-".to_owned(),
        };
        vec![
            id,
            format_utc(letter.at_ms),
            letter.position.clone(),
            escape_one_line(op),
            key,
            version.map_or_else(|| "-".to_owned(), |version| version.to_string()),
            tries,
            escape_one_line(&letter.error),
            args,
        ]
    };
    let head = ["ID", "AT", "POSITION", "OP", "KEY", "VERSION", "TRIES", "ERROR", "ARGS (BASE64)"];
    columns(&head, &letters.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_letter_shows_its_change_on_one_line() {
        let put = DeadLetterReport {
            position: "2066".into(),
            op: Some("put".into()),
            key: Some("o17\n\u{1b}[2J".into()),
            version: Some(9),
            ..DeadLetterReport::default()
        };
        let bytes = DeadLetterReport { key: None, key_base64: Some("/wA=".into()), ..put.clone() };
        let shown = dead_letters(&[put, bytes, DeadLetterReport::default()]);
        let words = |line: usize| shown.lines().nth(line).expect("a line").split_whitespace().collect::<Vec<_>>();
        assert_eq!(shown.lines().count(), 4, "{shown}");
        for (line, wanted) in [(1, ["2066", "put", "o17\\n\\u{1b}[2J", "9"]), (2, ["2066", "put", "base64:/wA=", "9"])]
        {
            assert!(words(line).windows(4).any(|found| found == wanted), "{shown}");
        }
        assert!(words(3).windows(3).any(|found| found == ["-", "-", "-"]), "{shown}");
    }

    #[test]
    fn an_error_says_when_it_was() {
        let failed = TriggerReport {
            last_error: "Failed: a bad\nvalue".into(),
            last_error_at_ms: Some(1_700_000_000_000),
            ..TriggerReport::default()
        };
        let shown = reason_or_error(&failed);
        assert!(shown.starts_with("2023-11-14") && shown.ends_with(": Failed: a bad\\nvalue"), "{shown}");
        assert_eq!(reason_or_error(&TriggerReport { reason: "paused".into(), ..failed }), "paused");
        assert_eq!(reason_or_error(&TriggerReport::default()), "");
    }

    #[test]
    fn a_replay_is_told_in_good_english() {
        assert_eq!(replaying("moves", 1), "1 call of trigger moves is made again");
        assert_eq!(replaying("moves", 2), "2 calls of trigger moves are made again");
        assert_eq!(going_on("moves", "end"), "trigger moves goes on from the end of the log");
        assert_eq!(going_on("moves", "70"), "trigger moves goes on from position 70");
    }

    #[test]
    fn a_trigger_goes_back_to_all_changes() {
        use ChangedOpsArg::{All, Clear, Put};
        assert_eq!(changed_ops(&[]).ok(), Some(None), "they stay");
        assert_eq!(changed_ops(&[Put, Clear]).ok(), Some(Some(vec!["put".into(), "clear".into()])));
        assert_eq!(changed_ops(&[All]).ok(), Some(Some(Vec::new())));
        assert!(changed_ops(&[All, Put]).is_err());
    }
}
