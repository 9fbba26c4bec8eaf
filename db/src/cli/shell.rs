//! `sandstorm shell`: commands one after the other, with history and completion.
//!
//! Each line is a command of this program, which runs as a process of its own: so a command that is interrupted, or
//! that follows something without an end, does not end the shell. `bank.transfer {…}` calls a typed function. Between
//! `begin` and `commit` lines are steps of a transaction, which this process keeps.

mod completion;
mod line_editor;
mod open_transaction;
pub(super) mod words;

use std::fs::{DirBuilder, OpenOptions};
use std::io::{BufRead, IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory};

use super::output::{CliError, OutputPrinter};
use super::session::CliSession;
use super::{CommandLine, GlobalArgs};
use completion::ShellNames;
use line_editor::{LineEditor, ReadOutcome};
use open_transaction::OpenTransaction;
use sandstorm_terminal::escape_one_line;
use words::split;

/// Lines of the history that are kept from one shell to the next.
const HISTORY_LINES: usize = 1_000;
/// Seconds to wait for a server's names: users wait no longer for a completion.
const NAMES_TIMEOUT_S: u64 = 2;
/// The file of the history, in the state directory.
const HISTORY_FILE: &str = "shell-history";
/// The file of the shell's last lines: what is in it may name records, so its owner alone reads it.
const HISTORY_MODE: u32 = 0o600;

const HELP: &str = "\
put items apple 3            any command of `sandstorm`, without that word: `--help` lists them
bank.deposit {\"name\": \"ann\"}  a typed function: `invoke bank.deposit …`
use TENANT                   the tenant of what follows; `use` alone: the one that was given
begin                        a transaction: its steps are the words for records, and check; then `commit` or `abort`
help, exit                   this text; the end (also ^D)
Tab completes commands, options, tables, extensions and functions. A line that begins with a space, or has --token, is
not kept in the history. JSON needs no quotes around it; other texts with spaces do, as in other shells.";

/// Runs lines until there are no more.
///
/// # Errors
/// When the lines come from no terminal and one of them failed, or input cannot be read.
pub(super) fn run(global: &GlobalArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let is_interactive = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let (given, json, program) = (given_options()?, out.json, program()?);
    let (global_args, transaction) = (global.clone(), None);
    let mut shell =
        CommandShell { tenant: None, given, json, is_interactive, program, failed: 0, global_args, transaction };
    if is_interactive {
        let timeout = global.timeout.min(NAMES_TIMEOUT_S);
        return interactive(&mut shell, &CliSession::new(&GlobalArgs { timeout, ..global.clone() }), out);
    }
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| CliError::new(format!("reading standard input: {error}")))?;
        if shell.line(&line, out)? == LineOutcome::Exit {
            break;
        }
    }
    shell.forget_transaction(out);
    match shell.failed {
        0 => Ok(()),
        failed => Err(CliError::new(format!("{failed} of the commands failed")).code("failed")),
    }
}

fn program() -> Result<PathBuf, CliError> {
    std::env::current_exe().map_err(|error| CliError::new(format!("this program's own file: {error}")))
}

/// The options of every command that the shell was started with, as the environment of its commands: so a line may give
/// them otherwise.
pub(super) fn given_options() -> Result<Vec<(String, String)>, CliError> {
    let matches = CommandLine::command().try_get_matches().map_err(|error| CliError::new(error.to_string()))?;
    Ok(options_of(&matches))
}

fn options_of(matches: &ArgMatches) -> Vec<(String, String)> {
    let command = CommandLine::command();
    let options = command.get_arguments().filter_map(|option| {
        let (id, name) = (option.get_id().as_str(), option.get_env()?.to_str()?);
        let is_given = matches.value_source(id) == Some(ValueSource::CommandLine);
        let value = matches.get_raw(id).filter(|_| is_given)?.next()?.to_str()?;
        Some((name.to_owned(), value.to_owned()))
    });
    options.collect()
}

/// What a line did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineOutcome {
    Next,
    Exit,
}

struct CommandShell {
    /// The tenant that `use` has named.
    tenant: Option<String>,
    given: Vec<(String, String)>,
    json: bool,
    /// Whether a person types the lines.
    is_interactive: bool,
    program: PathBuf,
    /// Commands that failed.
    failed: u64,
    /// What the shell was started with.
    global_args: GlobalArgs,
    transaction: Option<OpenTransaction>,
}

impl CommandShell {
    fn line(&mut self, line: &str, out: &OutputPrinter) -> Result<LineOutcome, CliError> {
        let words = match split(line) {
            Ok(words) => words,
            Err(why) => {
                self.note_failure(&CliError::new(why).code("usage"), out);
                return Ok(LineOutcome::Next);
            }
        };
        let is_own = matches!(words.first().map(String::as_str), None | Some("help" | "exit" | "quit"));
        if !is_own && let Some(transaction) = self.transaction.take() {
            let (open, done) = transaction.line((line, &words), out);
            self.transaction = open;
            if let Err(error) = done {
                self.note_failure(&error, out);
            }
            return Ok(LineOutcome::Next);
        }
        match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            ["exit" | "quit"] => return Ok(LineOutcome::Exit),
            ["help"] => out.line(HELP)?,
            ["use"] => self.tenant = None,
            ["use", tenant] => self.tenant = Some((*tenant).to_owned()),
            ["shell", ..] => out.line("this is it")?,
            ["begin"] => self.begin(out)?,
            ["commit" | "abort" | "rollback"] => {
                let error = CliError::new("no transaction is open").hint("`begin` opens one").code("usage");
                self.note_failure(&error, out);
            }
            [word @ ("commit" | "abort" | "rollback"), further, ..] => {
                self.note_failure(&open_transaction::end_error(word, further), out);
            }
            given => self.command(given)?,
        }
        Ok(LineOutcome::Next)
    }

    fn note_failure(&mut self, error: &CliError, out: &OutputPrinter) {
        self.failed += 1;
        out.fail(error);
    }

    fn begin(&mut self, out: &OutputPrinter) -> Result<(), CliError> {
        match OpenTransaction::begin(&self.global_args, self.tenant.as_ref(), self.is_interactive) {
            Ok(transaction) => self.transaction = Some(transaction),
            // A script's next lines are steps: they are not to run one by one.
            Err(error) if !self.is_interactive => return Err(error),
            Err(error) => {
                self.note_failure(&error, out);
                return Ok(());
            }
        }
        if self.is_interactive {
            out.line(
                "steps: get, range, count, rank, nth, ttl, check, put, del, del-range, incr, touch; then `commit` or `abort`",
            )?;
        }
        Ok(())
    }

    /// A transaction that is open at the end writes nothing.
    fn forget_transaction(&mut self, out: &OutputPrinter) {
        if self.transaction.take().is_some() {
            let error = CliError::new("the transaction was not committed").hint("nothing of it is written");
            self.note_failure(&error.code("aborted"), out);
        }
    }

    /// Runs a command to its end.
    fn command(&mut self, words: &[&str]) -> Result<(), CliError> {
        let words = words.strip_prefix(&["sandstorm"]).unwrap_or(words);
        let mut command = Command::new(&self.program);
        command.envs(self.given.iter().map(|(name, value)| (name, value)));
        if let Some(tenant) = &self.tenant {
            command.env("SANDSTORM_TENANT", tenant);
        }
        if self.json && !words.contains(&"--json") {
            command.arg("--json");
        }
        if words.first().is_some_and(|first| is_a_function(first)) {
            command.arg("invoke");
        }
        if !self.is_interactive {
            // What follows are lines of the shell, and no command's input.
            command.stdin(Stdio::null());
        }
        let ended = command.args(words).status();
        let ended = ended.map_err(|error| CliError::new(format!("running {}: {error}", self.program.display())))?;
        self.failed += u64::from(!ended.success());
        Ok(())
    }
}

/// Whether a first word names a function of an extension: no command has a dot.
fn is_a_function(word: &str) -> bool {
    word.split_once('.').is_some_and(|(extension, function)| !extension.is_empty() && !function.is_empty())
        && !word.starts_with('-')
}

fn interactive(shell: &mut CommandShell, session: &CliSession, out: &OutputPrinter) -> Result<(), CliError> {
    let no_terminal = |error: std::io::Error| CliError::new(format!("the terminal: {error}"));
    let history = session.state().join(HISTORY_FILE);
    let mut editor = LineEditor::new(read_history(&history));
    let mut names = ShellNames::new(session);
    let _guard = interrupts()?;
    out.line("commands of `sandstorm`, one a line; `help` says more, Tab completes, ^D ends")?;
    loop {
        let tenant = shell.tenant.clone().or_else(|| session.named_tenant().map(str::to_owned));
        names.set_tenant(shell.tenant.clone());
        let open = if shell.transaction.is_some() { " (transaction)" } else { "" };
        let prompt = format!("{}{open}> ", escape_one_line(tenant.as_deref().unwrap_or("sandstorm")));
        match editor.read(&prompt, &|text| names.completions(text)).map_err(no_terminal)? {
            ReadOutcome::Line(line) => {
                if is_kept(&line) {
                    editor.keep(&line);
                    keep_line(&history, &line);
                }
                if shell.line(&line, out)? == LineOutcome::Exit {
                    shell.forget_transaction(out);
                    return Ok(());
                }
            }
            // The line is given up, not the shell.
            ReadOutcome::Interrupted => {}
            ReadOutcome::End => {
                shell.forget_transaction(out);
                return Ok(());
            }
        }
    }
}

/// Whether a line belongs into the history: none that has a token, or that its author began with a space.
fn is_kept(line: &str) -> bool {
    !line.is_empty() && !line.starts_with(char::is_whitespace) && !line.contains("--token")
}

/// While this is kept, ^C interrupts the command that runs and not the shell.
fn interrupts() -> Result<tokio::runtime::Runtime, CliError> {
    let failed = |error: std::io::Error| CliError::new(format!("waiting for ^C: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let entered = runtime.enter();
    // The process keeps the handler, and a signal without a waiter is dropped.
    let _stream = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt()).map_err(failed)?;
    drop(entered);
    Ok(runtime)
}

/// The lines of earlier shells, as many as are kept. The file is shortened if it has twice as many.
fn read_history(file: &Path) -> Vec<String> {
    let text = String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned();
    let all: Vec<&str> = text.lines().collect();
    let kept: Vec<String> =
        all[all.len().saturating_sub(HISTORY_LINES)..].iter().map(|line| (*line).to_owned()).collect();
    if all.len() > 2 * HISTORY_LINES {
        let written = kept.iter().map(|line| format!("{line}\n")).collect::<String>();
        // A history that cannot be shortened is only longer.
        let _longer = std::fs::write(file, written);
    }
    kept
}

/// Adds a line to the file. A shell without a history works.
fn keep_line(file: &Path, line: &str) {
    if let Some(folder) = file.parent() {
        let _is_there = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    }
    let opened = OpenOptions::new().create(true).append(true).mode(HISTORY_MODE).open(file);
    if let Ok(mut opened) = opened {
        // At once: another shell may add to it as well.
        let _forgotten = opened.write_all(format!("{line}\n").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_shell_are_those_of_its_commands() {
        let line = ["sandstorm", "--tenant", "shop", "shell", "--sealed", "always"];
        let matches = CommandLine::command().try_get_matches_from(line).expect("it parses");
        let mut options = options_of(&matches);
        options.sort();
        let expected = [("SANDSTORM_SEALED", "always"), ("SANDSTORM_TENANT", "shop")];
        assert_eq!(options, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn functions_are_told_from_commands() {
        assert!(is_a_function("bank.transfer"));
        for word in ["put", ".", "bank.", ".x", "--a.b"] {
            assert!(!is_a_function(word), "{word}");
        }
    }

    #[test]
    fn secrets_are_not_kept() {
        assert!(is_kept("get items apple") && !is_kept(" get items apple") && !is_kept(""));
        assert!(!is_kept("get items apple --token x"));
    }

    #[test]
    fn the_history_is_the_owners_and_bounded() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("state").join(HISTORY_FILE);
        for number in 0..2 * HISTORY_LINES + 1 {
            keep_line(&file, &format!("get items {number}"));
        }
        assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, HISTORY_MODE);
        let kept = read_history(&file);
        assert_eq!((kept.len(), kept.last().map(String::as_str)), (HISTORY_LINES, Some("get items 2000")));
        assert_eq!(read_history(&file), kept, "it was shortened");
        assert_eq!(std::fs::read_to_string(&file).expect("text").lines().count(), HISTORY_LINES);
    }
}
