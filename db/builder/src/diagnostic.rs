//! Messages to a tenant about its source: the checker's refusals and the compiler's messages, in one form.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::limits;

/// The severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The extension is not built.
    Error,
    /// It is built nevertheless.
    Warning,
}

/// One message about one position of the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// The file, relative to the extension; empty when the message is about no file.
    pub file: String,
    /// Line, from 1; 0 when the message is about no line.
    pub line: u32,
    /// Column in characters, from 1; 0 when the message is about no line.
    pub column: u32,
    /// The checker's rule, or the compiler's error code.
    pub rule: Option<String>,
    /// One sentence.
    pub message: String,
    /// The whole message as rustc prints it.
    pub rendered: String,
}

impl Diagnostic {
    /// A refusal of `text[span]` of a file.
    pub fn refused(file: &str, text: &str, span: Range<usize>, rule: &str, message: &str) -> Diagnostic {
        let (line, column) = if text.is_empty() { (0, 0) } else { position(text, span.start) };
        let rendered = render(file, text, &span, line, column, rule, message);
        Diagnostic {
            severity: Severity::Error,
            file: file.to_owned(),
            line,
            column,
            rule: Some(rule.to_owned()),
            message: message.to_owned(),
            rendered,
        }
    }

    /// An error without a position.
    pub fn plain(message: &str) -> Diagnostic {
        Diagnostic::without_position(Severity::Error, "error", message)
    }

    /// A warning without a position.
    pub fn warning(message: &str) -> Diagnostic {
        Diagnostic::without_position(Severity::Warning, "warning", message)
    }

    fn without_position(severity: Severity, word: &str, message: &str) -> Diagnostic {
        Diagnostic {
            severity,
            file: String::new(),
            line: 0,
            column: 0,
            rule: None,
            message: message.to_owned(),
            rendered: format!("{word}: {message}\n"),
        }
    }
}

/// Line and column, both from 1, of a byte of the text.
fn position(text: &str, at: usize) -> (u32, u32) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before[line_start..].chars().count() + 1;
    (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
}

/// Renders a refusal as rustc renders an error.
fn render(file: &str, text: &str, span: &Range<usize>, line: u32, column: u32, rule: &str, message: &str) -> String {
    /// Characters of a source line that are shown: a minified file has one line.
    const SHOWN: usize = 160;
    if line == 0 {
        return format!("error[{rule}]: {message}\n --> {file}\n");
    }
    let margin = " ".repeat(line.to_string().len());
    let start = text.get(..span.start).unwrap_or("").rfind('\n').map_or(0, |newline| newline + 1);
    let code = text.get(start..).unwrap_or("").lines().next().unwrap_or("");
    let skipped = (column as usize).saturating_sub(SHOWN / 2);
    let skipped = if code.chars().count() > SHOWN { skipped } else { 0 };
    let printable = |character: char| if character.is_control() { ' ' } else { character };
    let shown: String = code.chars().skip(skipped).take(SHOWN).map(printable).collect();
    let indent = (column as usize).saturating_sub(1 + skipped);
    let offending = text.get(span.clone()).unwrap_or("").lines().next().unwrap_or("").chars().count();
    let carets = "^".repeat(offending.clamp(1, SHOWN.saturating_sub(indent).max(1)));
    let mut rendered = format!(
        "error[{rule}]: {message}\n{margin}--> {file}:{line}:{column}\n{margin} |\n{line} | {shown}\n{margin} | {}{carets}\n",
        " ".repeat(indent)
    );
    rendered.push('\n');
    rendered
}

/// The compiler's messages, from its `--error-format=json` output: one object per line.
pub(super) fn from_rustc(output: &str) -> Vec<Diagnostic> {
    output.lines().filter_map(|line| serde_json::from_str::<RustcMessage>(line).ok()).filter_map(convert).collect()
}

#[derive(Deserialize)]
struct RustcMessage {
    message: String,
    code: Option<RustcCode>,
    level: String,
    #[serde(default)]
    spans: Vec<RustcSpan>,
    rendered: Option<String>,
}

#[derive(Deserialize)]
struct RustcCode {
    code: String,
}

#[derive(Deserialize)]
struct RustcSpan {
    file_name: String,
    line_start: u32,
    column_start: u32,
    is_primary: bool,
}

/// What the compiler does not say: why this is refused, and what to write.
const UNUSED_HELP: &str = "= help: a read or write that is not awaited does nothing: end it with `.await?`; \
                           to ignore a result on purpose, write `let _ = ….await`\n\n";

/// The same of a crate that is not there.
const CRATE_HELP: &str = "= help: an extension has `core`, `alloc` and `sandstorm_api` (JSON, regular expressions, \
                          dates, hashes and more: docs/libraries.md); another library has to be vetted by the \
                          operator, and named in extension.toml: libraries = [\"…\"]\n\n";

fn convert(message: RustcMessage) -> Option<Diagnostic> {
    let severity = match message.level.as_str() {
        "error" | "error: internal compiler error" => Severity::Error,
        "warning" => Severity::Warning,
        _ => return None,
    };
    // The closing summaries ("aborting due to 2 previous errors", "1 warning emitted") have no position.
    if message.spans.is_empty() && (message.message.starts_with("aborting due") || message.message.ends_with("emitted"))
    {
        return None;
    }
    let place = message.spans.iter().find(|span| span.is_primary);
    let mut rendered = message.rendered.unwrap_or_else(|| message.message.clone());
    let rule = message.code.map(|code| code.code);
    if rule.as_deref() == Some("unused_must_use") {
        rendered.push_str(UNUSED_HELP);
    } else if rendered.contains("unlinked crate") {
        rendered.push_str(CRATE_HELP);
    }
    if rendered.len() > limits::RENDERED_BYTES {
        let cut = (0..=limits::RENDERED_BYTES).rev().find(|at| rendered.is_char_boundary(*at)).unwrap_or(0);
        rendered.truncate(cut);
        rendered.push_str("\n(cut)\n");
    }
    Some(Diagnostic {
        severity,
        file: place.map_or(String::new(), |span| span.file_name.clone()),
        line: place.map_or(0, |span| span.line_start),
        column: place.map_or(0, |span| span.column_start),
        rule,
        message: message.message,
        rendered,
    })
}
