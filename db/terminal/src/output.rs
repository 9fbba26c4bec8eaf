//! The output of the command line: tables and values for people, JSON for programs, errors with a hint.
//!
//! Tenants chose much of it: names, texts of errors and panics, lines of source. So everything but values goes through
//! [the escapes](crate). Values for people are escaped where they are formatted (`byte_args.rs` of the command line),
//! and raw bytes are printed unchanged.

use std::io::Write;

use sandstorm_builder::BuildError;
use sandstorm_client::control::{BuildDiagnostic, ControlError};
use serde::Serialize;
use serde_json::json;

use crate as terminal;

/// Prints results.
pub struct OutputPrinter {
    /// In JSON, for programs.
    pub json: bool,
}

/// The failure of a command.
#[derive(Debug)]
pub struct CliError {
    /// The problem in one line.
    pub message: String,
    /// Advice.
    pub hint: Option<String>,
    /// A code for programs.
    pub code: String,
    /// What the code was called in the release before, where it has another name now.
    old_code: Option<&'static str>,
    /// The text printed above it: the diagnostics of a refused source, in the compiler's format.
    rendered: String,
    /// The process's exit status.
    pub status: u8,
}

impl CliError {
    /// Creates an error with status 1 and no hint.
    pub fn new(message: impl Into<String>) -> CliError {
        let (hint, old_code, rendered) = (None, None, String::new());
        CliError { message: message.into(), hint, code: "invalid".into(), old_code, rendered, status: 1 }
    }

    /// Adds a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> CliError {
        self.hint = Some(hint.into());
        self
    }

    /// Prefixes the message with its subject.
    pub fn about(mut self, what: &str) -> CliError {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Adds a text of several lines above the error.
    pub fn below(mut self, what: &dyn std::fmt::Display) -> CliError {
        self.rendered = what.to_string();
        self
    }

    /// Sets the code for programs.
    pub fn code(mut self, code: &str) -> CliError {
        self.code = code.to_owned();
        self
    }
}

impl From<ControlError> for CliError {
    fn from(error: ControlError) -> CliError {
        let rendered = match &error {
            ControlError::Refused { diagnostics, .. } => rendered(diagnostics),
            _ => String::new(),
        };
        let hint = match &error {
            // The server's hint is about HTTP.
            ControlError::Unauthenticated { message, .. } if message.contains("unknown token") => Some(
                "is it this server's? give --token or SANDSTORM_TOKEN, or --state: the server's state directory holds \
                 the operator's token"
                    .to_owned(),
            ),
            ControlError::Unauthenticated { message, .. } if message.contains("carries no token") => Some(
                "give --token or SANDSTORM_TOKEN; on the server's machine --state, the server's state directory, will do"
                    .to_owned(),
            ),
            _ => error.hint().map(str::to_owned),
        };
        let (code, old_code) = (error.code().to_owned(), error.old_code());
        CliError { message: error.message(), hint, code, old_code, rendered, status: 1 }
    }
}

impl From<sandstorm_client::Error> for CliError {
    fn from(error: sandstorm_client::Error) -> CliError {
        use sandstorm_client::Error as E;
        let text = error.to_string();
        // The client's texts are "what is wrong; what to do". The server's own text in the middle may contain anything,
        // so there the hint is after the last semicolon. A tenant's or the system's text is not split.
        let divided = match &error {
            E::Killed { .. } | E::Failed { .. } | E::Io { .. } => None,
            // The client gives advice only for a message that could not be parsed.
            E::Malformed { text } if !text.ends_with('?') => None,
            E::OverQuota { .. } | E::TooLarge { .. } | E::Malformed { .. } | E::Version { .. } | E::Protocol { .. } => {
                text.rsplit_once("; ")
            }
            _ => text.split_once("; "),
        };
        let (message, hint) = match divided {
            Some((message, hint)) => (message.to_owned(), Some(hint.to_owned())),
            None => (text.trim_end_matches("; see the extension's kills").to_owned(), None),
        };
        let hint = match (&error, error.kind()) {
            (E::Killed { .. }, kind) => Some(kill_hint(kind.unwrap_or_default()).to_owned()),
            (E::Failed { .. }, Some("unknown_table")) => {
                Some("`sandstorm table list` shows the tables; `sandstorm table create NAME` makes one".to_owned())
            }
            _ => hint,
        };
        CliError { hint, ..CliError::new(message).code(error.code()) }
    }
}

/// What to do about a call that was killed.
fn kill_hint(cause: &str) -> &'static str {
    match cause {
        "total_budget" => {
            "does a loop not end? `sandstorm ext profile NAME` shows where the time goes; the operator sets total_us"
        }
        "stack_overflow" => "does a recursion not end? keep large values in a `Vec` or a `Box`",
        "out_of_memory" => "take less at once, in pages; the operator sets the quota that is named",
        _ => "`sandstorm kills` shows the extension's recent kills",
    }
}

impl From<BuildError> for CliError {
    fn from(error: BuildError) -> CliError {
        let rendered: String = error.diagnostics().iter().map(|remark| remark.rendered.as_str()).collect();
        let (message, code) = match &error {
            // A reason without a rule of the checker's is about a module, or about the source as a whole.
            BuildError::Refused(remarks) if remarks.len() == 1 && remarks[0].rule.is_none() => {
                return CliError::new(remarks[0].message.clone()).code("refused");
            }
            BuildError::Refused(remarks) => {
                (format!("the checker refuses the source ({})", remark_count(remarks.len())), "refused")
            }
            BuildError::Compile(remarks) => {
                (format!("the source does not compile ({})", remark_count(remarks.len())), "refused")
            }
            BuildError::Limit(_) => (error.to_string(), "limit"),
            BuildError::Busy(_) => (error.to_string(), "busy"),
            BuildError::Toolchain(_) | BuildError::Sandbox(_) => (error.to_string(), "builder"),
            BuildError::Internal(text) => (text.clone(), "internal"),
        };
        CliError { rendered, ..CliError::new(message).code(code) }
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> CliError {
        // The reader of the pipe has closed standard output: there is no reader for an error.
        let status = if error.kind() == std::io::ErrorKind::BrokenPipe { 0 } else { 1 };
        CliError { status, ..CliError::new(error.to_string()).code("io") }
    }
}

/// Most names in a line of an error.
const MAX_NAMES: usize = 10;

/// Joins names in a line: the first of them, and the number of the others.
pub fn summarize_names(names: &[String]) -> String {
    match names.split_at_checked(MAX_NAMES) {
        Some((shown, more)) if !more.is_empty() => format!("{} and {} more", shown.join(", "), more.len()),
        _ => names.join(", "),
    }
}

/// A number of things, by a noun whose plural ends in `s`.
///
/// ```
/// use sandstorm_terminal::output::counted;
/// assert_eq!((counted(1, "record"), counted(0, "record")), ("1 record".into(), "0 records".into()));
/// ```
pub fn counted(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

fn remark_count(remarks: usize) -> String {
    counted(remarks as u64, "remark")
}

/// Diagnostics in the compiler's format.
pub fn rendered(diagnostics: &[BuildDiagnostic]) -> String {
    let one = |remark: &BuildDiagnostic| match remark.rendered.trim_end() {
        "" => {
            format!("{}: {}\n --> {}:{}:{}\n", remark.severity, remark.message, remark.file, remark.line, remark.column)
        }
        text => format!("{text}\n"),
    };
    diagnostics.iter().map(one).collect::<Vec<_>>().join("\n")
}

impl OutputPrinter {
    /// Prints an error to standard error; a broken pipe is ignored.
    pub fn fail(&self, failure: &CliError) {
        if failure.status == 0 {
            return;
        }
        let mut text = String::new();
        if self.json {
            let CliError { message, hint, code, old_code, rendered, .. } = failure;
            let mut error = json!({"code": code, "message": message, "hint": hint, "rendered": rendered});
            if let Some(old_code) = old_code {
                error["old_code"] = json!(old_code);
            }
            let error = json!({"error": error});
            text = format!("{}\n", terminal::escape_json(&error.to_string()));
        } else {
            if !failure.rendered.is_empty() {
                text.push_str(&terminal::escape_lines(failure.rendered.trim_end()));
                text.push_str("\n\n");
            }
            text.push_str(&format!("error: {}\n", terminal::escape_one_line(&failure.message)));
            if let Some(hint) = &failure.hint {
                text.push_str(&format!("hint: {}\n", terminal::escape_one_line(hint)));
            }
        }
        // There is no stream left to report the error to.
        let _closed = std::io::stderr().write_all(text.as_bytes());
    }

    /// Prints bytes unchanged.
    pub fn raw(&self, bytes: &[u8]) -> Result<(), CliError> {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(bytes)?;
        Ok(stdout.flush()?)
    }

    /// Prints a value from `for_people` on a line of its own, whether or not it ends with a line end.
    pub fn value(&self, shown: &str) -> Result<(), CliError> {
        self.raw(format!("{}\n", shown.strip_suffix('\n').unwrap_or(shown)).as_bytes())
    }

    /// Prints a line for people.
    pub fn line(&self, text: &str) -> Result<(), CliError> {
        self.raw(format!("{}\n", terminal::escape_lines(text)).as_bytes())
    }

    /// Prints the outcome of a command without a result.
    pub fn done(&self, text: &str) -> Result<(), CliError> {
        if self.json { self.json(&json!({"ok": true})) } else { self.line(text) }
    }

    /// Prints a value as JSON in one line.
    pub fn json(&self, value: &impl Serialize) -> Result<(), CliError> {
        let text = serde_json::to_string(value).map_err(|error| CliError::new(error.to_string()))?;
        self.raw(format!("{}\n", terminal::escape_json(&text)).as_bytes())
    }

    /// Prints a value for programs, or the text that `human` makes of it.
    pub fn show<T: Serialize>(&self, value: &T, human: impl FnOnce(&T) -> String) -> Result<(), CliError> {
        if self.json { self.json(value) } else { self.raw(terminal::escape_lines(&human(value)).as_bytes()) }
    }
}

/// Formats rows under a heading, in columns; numbers are right-aligned.
pub fn columns(head: &[&str], rows: &[Vec<String>]) -> String {
    let fit = |row: &Vec<String>| row.iter().map(|cell| terminal::escape_one_line(cell)).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(fit).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let is_number = |column: usize| {
        let mut cells = rows.iter().filter_map(|row| row.get(column)).filter(|cell| *cell != "-").peekable();
        cells.peek().is_some() && cells.all(|cell| cell.starts_with(|c: char| c.is_ascii_digit()))
    };
    let right: Vec<bool> = (0..head.len()).map(is_number).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells
            .zip(widths.iter().zip(&right))
            .map(|(cell, (width, right))| if *right { format!("{cell:>width$}") } else { format!("{cell:<width$}") })
            .collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text = line(&mut head.iter().copied());
    for row in &rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

/// Formats names and values, one pair a line.
pub fn fields(fields: &[(&str, String)]) -> String {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |name: &str, value: &str| {
        format!("{}\n", format!("{name:<width$}  {}", terminal::escape_one_line(value)).trim_end())
    };
    fields.iter().map(|(name, value)| line(name, value)).collect()
}

/// Formats a number of bytes for people: `1.5 MiB`.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 10.0 { format!("{value:.1} {}", UNITS[unit]) } else { format!("{value:.0} {}", UNITS[unit]) }
}
